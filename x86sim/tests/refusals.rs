//! What the evaluated processor stops at, and what it does not.

use tlc_x86sim::iced_x86::{Code as C, Encoder, Instruction, MemoryOperand, Register as R};
use tlc_x86sim::{Access, Code, Fault, Flag, Machine, Permission, Refusal, Region};

const CODE: u64 = 0x1000;
const DATA: u64 = 0x10_0000;

fn code(instructions: &[Instruction]) -> Code {
    let mut encoder = Encoder::new(64);
    let mut at = CODE;
    for inst in instructions {
        at += encoder.encode(inst, at).expect("an instruction") as u64;
    }
    Code {
        base: CODE,
        bytes: encoder.take_buffer(),
    }
}

/// Runs instructions and a return behind them, with 40 bytes of data that `rdi` points to.
fn run(instructions: &[Instruction], permission: Permission, prepare: impl Fn(&mut Machine)) -> Result<Vec<u8>, Fault> {
    let instructions: Vec<Instruction> = instructions
        .iter()
        .copied()
        .chain([Instruction::with(C::Retnq)])
        .collect();
    let mut machine = Machine::new(code(&instructions), 1000).expect("places");
    let bytes: Vec<u8> = (0..40).collect();
    machine
        .memory
        .add(Region::new("data", DATA, bytes, permission))
        .expect("a place");
    machine.state.general[7] = DATA;
    prepare(&mut machine);
    machine.run(CODE)?;
    Ok(machine.memory.region("data").expect("it is there").bytes.clone())
}

fn at(displacement: i64) -> MemoryOperand {
    MemoryOperand::with_base_displ(R::RDI, displacement)
}

fn load(displacement: i64) -> Instruction {
    Instruction::with2(C::EVEX_Vmovdqu32_ymm_k1z_ymmm256, R::YMM1, at(displacement)).expect("a load")
}

fn store(displacement: i64) -> Instruction {
    Instruction::with2(C::EVEX_Vmovdqu32_ymmm256_k1z_ymm, at(displacement), R::YMM1).expect("a store")
}

fn nothing(_: &mut Machine) {}

#[test]
fn accesses_outside_are_told_with_the_instruction() {
    run(&[load(8)], Permission::Read, nothing).expect("the last 32 bytes");
    let fault = run(&[load(0), load(9)], Permission::Read, nothing).expect_err("one byte beyond");
    let Fault::Access {
        at,
        access: Access::Read,
        address,
        bytes: 32,
        why: Refusal::End { region, inside: 31 },
        ..
    } = &fault
    else {
        panic!("{fault}")
    };
    assert_eq!((*at, *address, region.as_str()), (CODE + 7, DATA + 9, "data"));
    let text = fault.to_string();
    assert!(text.contains("vmovdqu32 ymm1, [rdi+9]"), "{text}");
    let before = run(&[load(-1)], Permission::Read, nothing).expect_err("before it");
    assert!(before.to_string().contains("1 bytes before data"), "{before}");
    let read_only = run(&[store(0)], Permission::Read, nothing).expect_err("not to be written");
    assert!(read_only.to_string().contains("may not be written"), "{read_only}");
    let undefined = run(&[load(0)], Permission::Write, nothing).expect_err("nothing wrote it");
    assert!(
        undefined.to_string().contains("nothing wrote byte 0 of data"),
        "{undefined}"
    );
    run(&[store(0), load(0)], Permission::Write, nothing).expect("written before it is read");
}

#[test]
fn lanes_that_a_mask_leaves_out_are_not_touched() {
    let masked = |mut inst: Instruction| {
        inst.set_op_mask(R::K1);
        inst
    };
    let two = |m: &mut Machine| m.state.masks[1] = 0b11;
    let before: Vec<u8> = (0..40).collect();
    // The last 8 bytes are two lanes; what is behind them is nowhere.
    run(&[masked(load(32))], Permission::Read, two).expect("two lanes");
    let after = run(&[masked(store(32))], Permission::ReadWrite, two).expect("two lanes");
    assert_eq!(after[..32], before[..32]);
    assert_ne!(after[32..], before[32..]);
    let three = |m: &mut Machine| m.state.masks[1] = 0b111;
    run(&[masked(load(32))], Permission::Read, three).expect_err("three lanes");
    let add = C::EVEX_Vaddps_ymm_k1z_ymm_ymmm256b32;
    let add = Instruction::with3(add, R::YMM1, R::YMM2, at(32)).expect("a sum");
    run(&[masked(add)], Permission::Read, two).expect("two lanes");
    run(&[masked(add)], Permission::Read, three).expect_err("three lanes");
    // Signs of lanes say it where there are no mask registers.
    let signs = |lanes: usize| {
        move |m: &mut Machine| {
            m.state.vectors[2].0 = [0; 64];
            (0..lanes).for_each(|lane| m.state.vectors[2].0[4 * lane + 3] = 0x80);
        }
    };
    let load = C::VEX_Vpmaskmovd_ymm_ymm_m256;
    let load = Instruction::with3(load, R::YMM1, R::YMM2, at(32)).expect("a load");
    run(&[load], Permission::Read, signs(2)).expect("two lanes");
    run(&[load], Permission::Read, signs(3)).expect_err("three lanes");
}

#[test]
fn what_is_not_known_is_named() {
    let unknown = Instruction::with(C::Cpuid);
    let fault = run(&[unknown], Permission::Read, nothing).expect_err("not known");
    assert!(
        matches!(&fault, Fault::Unknown { code, .. } if code == "Cpuid"),
        "{fault}"
    );
    // A known instruction in a form that the compiler does not write.
    let mut broadcast =
        Instruction::with3(C::EVEX_Vaddps_ymm_k1z_ymm_ymmm256b32, R::YMM1, R::YMM2, at(0)).expect("a sum");
    broadcast.set_is_broadcast(true);
    let fault = run(&[broadcast], Permission::Read, nothing).expect_err("not known");
    assert!(matches!(fault, Fault::Unknown { .. }), "{fault}");
    let mut machine = Machine::new(
        Code {
            base: CODE,
            bytes: vec![0x06, 0xc3],
        },
        10,
    )
    .expect("places");
    assert_eq!(machine.run(CODE), Err(Fault::NoInstruction { at: CODE }));
}

#[test]
fn loops_without_end_end() {
    let again = Instruction::with_branch(C::Jmp_rel32_64, CODE).expect("a jump");
    assert_eq!(
        run(&[again], Permission::Read, nothing),
        Err(Fault::Limit { limit: 1000 })
    );
    let away = Instruction::with_branch(C::Jmp_rel32_64, 0x9000).expect("a jump");
    let fault = run(&[away], Permission::Read, nothing).expect_err("no code there");
    assert!(matches!(fault, Fault::NoCode { to: 0x9000, .. }), "{fault}");
}

#[test]
fn flags_are_read_where_they_are_defined() {
    let equal = Instruction::with1(C::Sete_rm8, R::AL).expect("a set");
    let fault = run(&[equal], Permission::Read, nothing).expect_err("nothing set it");
    assert!(
        matches!(fault, Fault::UndefinedFlag { flag: Flag::Zero, .. }),
        "{fault}"
    );
    let test = Instruction::with2(C::Test_rm64_r64, R::RDI, R::RDI).expect("a test");
    run(&[test, equal], Permission::Read, nothing).expect("set by the test");
    let multiply = Instruction::with2(C::Imul_r64_rm64, R::RDI, R::RDI).expect("a product");
    run(&[test, multiply, equal], Permission::Read, nothing).expect_err("a product leaves it undefined");
}

#[test]
fn functions_give_back_what_they_have_to() {
    let clear = Instruction::with2(C::Xor_r32_rm32, R::EBX, R::EBX).expect("a zero");
    let empty = Instruction::with(C::VEX_Vzeroupper);
    let end = Instruction::with(C::Retnq);
    let called = |instructions: &[Instruction]| {
        let mut machine = Machine::new(code(instructions), 100).expect("places");
        machine.call(CODE, &[])
    };
    called(&[empty, end]).expect("nothing was changed");
    assert_eq!(called(&[end]), Err(Fault::Upper(0)));
    let fault = called(&[clear, empty, end]).expect_err("rbx is the caller's");
    assert!(matches!(fault, Fault::Convention { register: "rbx", .. }), "{fault}");
}

#[test]
fn host_functions_leave_their_result_and_nothing_else() {
    let host = 0x7777_0000;
    let address = Instruction::with2(C::Mov_r64_imm64, R::RAX, host).expect("an address");
    let call = Instruction::with1(C::Call_rm64, R::RAX).expect("a call");
    let down = Instruction::with2(C::Sub_rm64_imm32, R::RSP, 8).expect("a frame");
    let up = Instruction::with2(C::Lea_r64_m, R::RSP, MemoryOperand::with_base_displ(R::RSP, 8)).expect("a frame");
    let end = Instruction::with(C::Retnq);
    let mut machine = Machine::new(code(&[down, address, call, up, end]), 100).expect("places");
    machine.host(
        host,
        Box::new(|state, _| {
            state.general[0] = state.general[7] + 1;
            Ok(())
        }),
    );
    machine.state.general[7] = 41;
    machine.state.masks[1] = 5;
    machine.run(CODE).expect("it runs");
    assert_eq!(machine.state.general[0], 42);
    assert_ne!((machine.state.general[7], machine.state.masks[1]), (41, 5));
    // The stack has to be aligned.
    let mut machine = Machine::new(code(&[address, call, end]), 100).expect("places");
    machine.host(host, Box::new(|_, _| Ok(())));
    assert!(matches!(machine.run(CODE), Err(Fault::Stack { .. })));
}
