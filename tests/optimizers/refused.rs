//! What is refused, and with what words.

use tlc::optim::{Adam, Groups, Optimizer, Schedule, clip};
use tlc::{DType, Graph};

#[test]
fn texts_that_say_nothing_known_are_told_what_is() {
    let cases = [
        (
            "adan",
            "there is no optimizer `adan`, but sgd, adam, adamw, adamax, nadam, radam, adagrad, adadelta, rmsprop, \
             adafactor, muon, lamb, lion, adabound",
        ),
        ("", "there is no optimizer ``, but sgd, adam, adamw, adamax"),
        ("lion:lr=1,wd=0, lr = 2", "lion: `lr` is given twice"),
        ("lion:lr=1,beta=2", "lion has no setting `beta`, but lr, b1, b2, wd"),
        ("lion:lr", "lion: `lr` needs a value, as in `lr=...`"),
        ("lion:lr=", "lion: `lr=`, expected a rate of at least 0, step("),
        ("adam:b1=1", "adam: `b1=1`, expected a number from 0 to below 1"),
        ("adam:eps=nan", "adam: `eps=nan`, expected a number of at least 0"),
        ("adam:amsgrad=yes", "adam: `amsgrad=yes`, expected true or false"),
        (
            "adam:lr=cosine(1)",
            "adam: `lr=cosine(1)`, expected a rate of at least 0, step(",
        ),
        ("adam:lr=cosine(1,0)", "adam: `lr=cosine(1,0)`, expected"),
        (
            "adam:lr=warmup(3,warmup(2))",
            "adam: `lr=warmup(3,warmup(2))`, expected",
        ),
        ("adam:lr=-1", "adam: `lr=-1`, expected"),
        ("muon:steps=0", "muon: `steps=0`, expected a whole number of at least 1"),
        ("adam:,", "adam has no setting ``, but"),
    ];
    for (text, said) in cases {
        let error = text.parse::<Optimizer>().unwrap_err().to_string();
        assert!(error.starts_with(said), "{text}: {error}");
    }
    let deep = format!("sgd:lr={}0.1{}", "warmup(1,".repeat(100_000), ")".repeat(100_000));
    assert!(deep.parse::<Optimizer>().is_err());
    let groups = "adamw; *.bias".parse::<Groups>().unwrap_err();
    assert_eq!(
        groups.to_string(),
        "the group `*.bias` says no settings, as in `*.bias: wd=0`"
    );
    assert!("adamw; *.bias: wd=no".parse::<Groups>().is_err());
    assert!("adamw; *.bias: adan".parse::<Groups>().is_err());
}

#[test]
fn groups_take_the_first_that_matches() {
    let groups: Groups = "adamw:lr=cosine(0.1,10); *.bias: wd=0; head.*: sgd; *weight: lr=0.5"
        .parse()
        .unwrap();
    assert!(
        groups
            .of("head.bias")
            .to_string()
            .starts_with("adamw:lr=cosine(0.1,10,0),")
    );
    assert_eq!(groups.of("head.weight").name(), "sgd");
    assert!(groups.of("body.weight").to_string().starts_with("adamw:lr=0.5,"));
    assert!(groups.of("scale").to_string().contains("wd=0.01"));
    assert_eq!(groups.unused(["a.bias", "weight"]), ["head.*"]);
    let text = groups.to_string();
    assert_eq!(text.parse::<Groups>().unwrap().to_string(), text);
}

#[test]
fn what_does_not_belong_together_is_refused_at_its_line() {
    let said = |update: &dyn Fn(&Graph)| {
        let g = Graph::new("refused");
        update(&g);
        let errors = g.errors();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0].origin.to_string().contains("refused.rs"),
            "{}",
            errors[0].origin
        );
        errors[0].to_string()
    };
    let adam = Optimizer::from(Adam::default());
    let x = |g: &Graph, name: &str, shape: &[usize]| g.input(name, DType::F32, shape);
    let text = said(&|g| {
        let (step, p) = (g.scalar(1, DType::I64), x(g, "p", &[3]));
        adam.update(&step, &p, &x(g, "g", &[4]), &[&p, &p]);
    });
    assert!(text.contains("a gradient f32[4] of f32[3]"), "{text}");
    let text = said(&|g| {
        let (step, p) = (g.scalar(1, DType::I64), x(g, "p", &[3]));
        adam.update(&step, &p, &p, &[&p]);
    });
    assert!(text.contains("mean f32[3], square f32[3]"), "{text}");
    let text = said(&|g| {
        let p = x(g, "p", &[3]);
        adam.update(&p, &p, &p, &[&p, &p]);
    });
    assert!(text.contains("the step is f32[3]"), "{text}");
    let text = said(&|g| {
        let (step, p) = (g.scalar(1, DType::I64), g.input("p", DType::I32, [3]));
        adam.update(&step, &p, &p, &[]);
    });
    assert!(text.contains("no float"), "{text}");
    let text = said(&|g| {
        let (step, p) = (g.scalar(1, DType::I64), x(g, "p", &[3]));
        let wrong = Optimizer::from(Adam {
            beta1: 1.5,
            ..Adam::default()
        });
        wrong.update(&step, &p, &p, &[&p, &p]);
    });
    assert!(text.contains("beta1 = 1.5") && text.contains("below 1"), "{text}");
    let text = said(&|g| {
        let (step, p) = (g.scalar(1, DType::I64), x(g, "p", &[3]));
        "muon".parse::<Optimizer>().unwrap().update(&step, &p, &p, &[&p]);
    });
    assert!(text.contains("Muon is for matrices"), "{text}");
    let text = said(&|g| {
        clip::by_global_norm(&[&x(g, "p", &[3])], -1.0);
    });
    assert!(text.contains("the limit -1"), "{text}");
    let text = said(&|g| {
        Schedule::Constant(0.1).at(&x(g, "p", &[3]));
    });
    assert!(text.contains("without axes"), "{text}");
}
