//! What is written to files: lines of JSON.

use serde_json::Value;

use super::*;

#[test]
fn findings_counters_and_the_report_are_lines_of_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let (findings, counters, report) = (path("findings"), path("counters"), path("report"));
    let environment: [(&str, &str); 4] = [
        ("TLC_SIM_FINDINGS", &findings),
        ("TLC_SIM_COUNTERS", &counters),
        ("TLC_SIM_REPORT", &report),
        ("TLC_SIM_ON_FINDING", "continue"),
    ];
    cases(
        "files::findings_counters_and_the_report_are_lines_of_json",
        &[("run", &environment)],
        |_| {
            let p = Program::new();
            let (x, y) = (filled(&counted()), alloc(LEN));
            ok(p.next(y, x, null_mut()));
            ok(p.launch("race", (1, 64), null_mut(), &[Arg::Address(x)]));
            ok(cuMemsetD32Async(y, 0, LEN, stream()));
            ok(cuCtxSynchronize());
        },
    );
    if std::env::var("TLC_TEST_CASE").is_ok() {
        return;
    }
    let lines = |file: &str| -> Vec<Value> {
        let text = std::fs::read_to_string(file).unwrap();
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    };
    let found = lines(&findings);
    assert_eq!(found.len(), 2, "{found:?}");
    let kinds: Vec<&str> = found.iter().map(|f| f["kind"].as_str().unwrap()).collect();
    assert!(kinds.contains(&"race") && kinds.contains(&"unordered"), "{kinds:?}");
    let race = found.iter().find(|f| f["kind"] == "race").unwrap();
    assert_eq!(race["kernel"], "race");
    assert!(race["site"]["ptx_line"].as_u64().unwrap() > 60 && race["other"].is_object());
    let counted = lines(&counters);
    assert_eq!(counted.len(), 2);
    let next = &counted[0];
    assert_eq!(
        (&next["kernel"], &next["grid"][0], &next["block"][0]),
        (&"next".into(), &8.into(), &128.into())
    );
    let loads = &next["global_loads"];
    assert_eq!((&loads["bytes"], &loads["sectors"]), (&4000.into(), &125.into()));
    assert_eq!(next["lanes"]["store"], 1000);
    let summary = &lines(&report)[0];
    assert_eq!((&summary["launches"], &summary["found"]), (&2.into(), &2.into()));
    assert_eq!(
        (&summary["kinds"]["race"], &summary["calls"]["cuLaunchKernel"]),
        (&1.into(), &2.into())
    );
    assert_eq!(summary["device_bytes"], 8000);
}
