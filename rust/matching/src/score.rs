//! Scores: the 16 bits by which candidates are ordered, lower is better.
//!
//! An agent with a free slot sorts before every busy one; among free ones the shortest expected service wins,
//! among busy ones the shortest expected wait. Service times are estimates, so ordering by expected delay alone
//! herds on under-estimated agents; idle-first removes that. Buckets are logarithmic (0.3 %), which damps noise.

/// First score of an agent without a free slot.
pub const BUSY: u16 = 0x4000;
/// The longest service or round-trip time that can be told from longer ones, in seconds (about 71 minutes).
pub const MAX_SECONDS: f64 = 4_294.0;

const SERVICE_STEPS: f64 = 2_048.0;
const RTT_STEPS: f64 = 8.0;

/// 256 * log2(1 + i / 256), by repeated squaring so that it is exact on every platform.
const LOG: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut i = 0;
    while i < 256 {
        let mut mantissa = (256 + i as u64) << 24; // in [1, 2), 32 fractional bits
        let mut log = 0u16;
        let mut bit = 0;
        while bit < 8 {
            mantissa = ((mantissa as u128 * mantissa as u128) >> 32) as u64;
            log <<= 1;
            if mantissa >= 2 << 32 {
                mantissa >>= 1;
                log |= 1;
            }
            bit += 1;
        }
        table[i] = log;
        i += 1;
    }
    table
};

/// 65536 * 2^(i / 256): the largest fixed-point number whose table logarithm is below `i + 1`.
const EXP: [u32; 256] = {
    let mut table = [0u32; 256];
    // 2^(1/256) with 60 fractional bits, by eight square roots of 2.
    let mut root: u128 = 2 << 60;
    let mut n = 0;
    while n < 8 {
        root = isqrt(root << 60);
        n += 1;
    }
    let mut value: u128 = 1 << 60;
    let mut i = 0;
    while i < 256 {
        table[i] = (value >> 44) as u32;
        value = (value * root) >> 60;
        i += 1;
    }
    table
};

const fn isqrt(n: u128) -> u128 {
    let mut low: u128 = 0;
    let mut high: u128 = 1 << 64;
    while low < high {
        let mid = low + (high - low).div_ceil(2);
        if mid * mid <= n { low = mid } else { high = mid - 1 }
    }
    low
}

/// 256 * log2(x), rounded down to the table's step; 0 for 0 and 1.
#[inline]
fn log2_q8(x: u64) -> u32 {
    let x = x.max(1);
    let whole = 63 - x.leading_zeros();
    let fraction = ((x << (63 - whole)) >> 55) & 0xFF;
    whole * 256 + u32::from(LOG[fraction as usize])
}

/// Service time in 1/2048 octaves above a microsecond, from seconds. Not finite or not positive gives 0.
#[must_use]
pub fn service_code(seconds: f64) -> u16 {
    if !seconds.is_finite() || seconds <= 1e-6 {
        return 0;
    }
    ((seconds.min(MAX_SECONDS) * 1e6).log2() * SERVICE_STEPS)
        .round()
        .min(65_535.0) as u16
}

/// Seconds of a service code.
#[must_use]
pub fn service_seconds(code: u16) -> f64 {
    (f64::from(code) / SERVICE_STEPS).exp2() * 1e-6
}

/// Round-trip time in eighths of an octave above a microsecond; 0 means unknown or none.
#[must_use]
pub fn rtt_code(seconds: f64) -> u8 {
    if !seconds.is_finite() || seconds <= 1e-6 {
        return 0;
    }
    ((seconds.min(MAX_SECONDS) * 1e6).log2() * RTT_STEPS)
        .round()
        .min(255.0) as u8
}

/// Seconds of a round-trip code.
#[must_use]
pub fn rtt_seconds(code: u8) -> f64 {
    if code == 0 {
        0.0
    } else {
        (f64::from(code) / RTT_STEPS).exp2() * 1e-6
    }
}

#[inline]
fn microseconds(eighth_octaves_256: u32) -> u64 {
    let whole = eighth_octaves_256 >> 8;
    (u64::from(EXP[(eighth_octaves_256 & 0xFF) as usize]) << whole) >> 16
}

/// The score of an agent with `load` queued or running tasks.
#[inline]
#[must_use]
pub fn score(load: u16, service: u16, rtt: u8, concurrency: u8) -> u16 {
    let service_us = microseconds(u32::from(service) >> 3).max(1);
    let rtt_us = if rtt == 0 {
        0
    } else {
        microseconds(u32::from(rtt) * 32)
    };
    let slots = u64::from(concurrency.max(1));
    if u64::from(load) < slots {
        return (log2_q8(service_us + rtt_us) as u16).min(BUSY - 1);
    }
    let mut wait = (u64::from(load) + 1) * service_us;
    if slots > 1 {
        wait /= slots;
    }
    BUSY + (log2_q8(wait + rtt_us) as u16).min(BUSY - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_agents_sort_before_busy_ones_and_faster_before_slower() {
        let second = service_code(1.0);
        let slow = service_code(60.0);
        assert!(score(0, slow, 0, 1) < score(1, service_code(0.001), 0, 1));
        assert!(score(0, second, 0, 1) < score(0, slow, 0, 1));
        assert!(score(1, second, 0, 1) < score(2, second, 0, 1));
        assert!(score(3, second, 0, 4) < BUSY);
        assert!(score(4, second, 0, 4) >= BUSY);
        assert!(score(0, second, rtt_code(0.05), 1) > score(0, second, 0, 1));
    }

    #[test]
    fn longer_queues_never_score_lower() {
        for service in [0, 1, 1000, 20_000, 65_535] {
            let mut last = 0;
            for load in 0..=u16::MAX {
                let now = score(load, service, 0, 3);
                assert!(now >= last, "load {load} service {service}");
                last = now;
            }
        }
    }

    #[test]
    fn codes_round_trip_within_their_step() {
        for seconds in [1e-5, 1e-3, 0.02, 1.0, 37.5, 4000.0] {
            assert!((service_seconds(service_code(seconds)) / seconds - 1.0).abs() < 2e-4);
            assert!((rtt_seconds(rtt_code(seconds)) / seconds - 1.0).abs() < 0.05);
        }
        assert_eq!(service_code(f64::NAN), 0);
        assert_eq!(service_code(f64::INFINITY), 0);
        assert_eq!(rtt_code(-1.0), 0);
    }

    #[test]
    fn table_logarithm_is_within_a_step_of_the_real_one() {
        for x in [1u64, 2, 3, 255, 256, 1_000_003, u64::from(u32::MAX), 1 << 40] {
            let real = (x as f64).log2() * 256.0;
            assert!((f64::from(log2_q8(x)) - real).abs() <= 1.6, "{x}");
        }
    }
}
