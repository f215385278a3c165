//! Interpreter of seccomp filters, which are programs of classic BPF. It knows the few instructions that compiled
//! filters are made of; codes as in linux/bpf_common.h.

/// Fields of a `sock_filter`: `code`, `jt`, `jf`, `k`.
pub type Instruction = (u16, u8, u8, u32);

/// Runs a filter on a call: `arch` is one of `AUDIT_ARCH_*` in linux/audit.h. Returns the filter's value.
///
/// # Panics
/// If the filter has another instruction, reads another field than those of the call, or does not return.
pub fn answer(
    program: impl IntoIterator<Item = Instruction>,
    arch: u32,
    number: u32,
    args: [u64; 6],
) -> u32 {
    let program: Vec<Instruction> = program.into_iter().collect();
    let (mut at, mut accumulator) = (0usize, 0u32);
    loop {
        let (code, jt, jf, k) = program[at];
        at += 1;
        let jump = |taken: bool| usize::from(if taken { jt } else { jf });
        match code {
            // LD | W | ABS
            0x20 => accumulator = field(k, arch, number, args),
            // JMP | JA
            0x05 => at += k as usize,
            // JMP | JEQ | K
            0x15 => at += jump(accumulator == k),
            // ALU | AND | K
            0x54 => accumulator &= k,
            // RET | K
            0x06 => return k,
            code => panic!("the filter has instruction {code:#x}"),
        }
    }
}

/// Returns 32 bits of a call's seccomp_data (linux/seccomp.h) on a little-endian machine.
fn field(offset: u32, arch: u32, number: u32, args: [u64; 6]) -> u32 {
    match (offset, offset % 8) {
        (0, _) => number,
        (4, _) => arch,
        (16..64, 0) => args[(offset as usize - 16) / 8] as u32,
        (16..64, 4) => (args[(offset as usize - 16) / 8] >> 32) as u32,
        _ => panic!("the filter reads offset {offset}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// Returns 1 for call 7 of architecture 5 whose last argument has bit 32 and no lower one; 0 for every other.
    const PROGRAM: [Instruction; 11] = [
        (0x20, 0, 0, 4),
        (0x15, 0, 7, 5),
        (0x20, 0, 0, 0),
        (0x15, 0, 5, 7),
        (0x20, 0, 0, 56),
        (0x15, 0, 3, 0),
        (0x20, 0, 0, 60),
        (0x54, 0, 0, 1),
        (0x15, 1, 0, 1),
        (0x06, 0, 0, 0),
        (0x06, 0, 0, 1),
    ];

    #[rstest]
    #[case::it(5, 7, 3 << 32, 1)]
    #[case::another_architecture(6, 7, 3 << 32, 0)]
    #[case::another_call(5, 8, 3 << 32, 0)]
    #[case::a_lower_bit(5, 7, (3 << 32) | 1, 0)]
    #[case::without_the_bit(5, 7, 2 << 32, 0)]
    fn fields_and_jumps_decide(
        #[case] arch: u32,
        #[case] number: u32,
        #[case] last: u64,
        #[case] wanted: u32,
    ) {
        assert_eq!(answer(PROGRAM, arch, number, [0, 0, 0, 0, 0, last]), wanted);
    }
}
