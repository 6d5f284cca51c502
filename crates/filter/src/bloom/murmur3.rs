//! The hash of the bloom filter: MurmurHash3 for 64-bit machines with seed 0, the lower half of its 128 bits.

const BLOCK_BYTES: usize = 16;
const C1: u64 = 0x87c3_7b91_1142_53d5;
const C2: u64 = 0x4cf5_ad43_2745_937f;

/// The first eight bytes of the hash, as a little-endian number.
pub(super) fn hash_64(bytes: &[u8]) -> u64 {
    let (mut h1, mut h2) = (0_u64, 0_u64);
    let (blocks, tail) = bytes.as_chunks::<BLOCK_BYTES>();
    for block in blocks {
        let (k1, k2) = halves(*block);
        h1 ^= mix_first(k1);
        h1 = h1.rotate_left(27).wrapping_add(h2).wrapping_mul(5).wrapping_add(0x52dc_e729);
        h2 ^= mix_second(k2);
        h2 = h2.rotate_left(31).wrapping_add(h1).wrapping_mul(5).wrapping_add(0x3849_5ab5);
    }
    // Zeros mix to zero, so a tail filled up with zeros is a tail.
    let mut last = [0; BLOCK_BYTES];
    last[..tail.len()].copy_from_slice(tail);
    let (k1, k2) = halves(last);
    h1 ^= mix_first(k1);
    h2 ^= mix_second(k2);

    let length = bytes.len() as u64;
    h1 ^= length;
    h2 ^= length;
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    finish(h1).wrapping_add(finish(h2))
}

fn halves(block: [u8; BLOCK_BYTES]) -> (u64, u64) {
    let block = u128::from_le_bytes(block);
    (block as u64, (block >> 64) as u64)
}

fn mix_first(k: u64) -> u64 {
    k.wrapping_mul(C1).rotate_left(31).wrapping_mul(C2)
}

fn mix_second(k: u64) -> u64 {
    k.wrapping_mul(C2).rotate_left(33).wrapping_mul(C1)
}

fn finish(mut hash: u64) -> u64 {
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}
