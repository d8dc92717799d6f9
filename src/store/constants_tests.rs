//! Reads in place, and what they take of the floor.

use super::*;
use crate::schedule::Event;

/// A table that is looked up first and multiplied with last, and two weights between; each kernel reads one.
fn tied(gather: &[ProbeId]) -> (Constants, Method) {
    let spec = |(index, bytes)| WeightSpec {
        fqn: format!("w{index}"),
        bytes,
        kind: WeightKind::Weight,
    };
    let layout = |rows| WeightLayout {
        sizes: vec![rows],
        ..WeightLayout::default()
    };
    let each = |id| [Event::Probe(id), Event::Kernel(id), Event::Release(id)];
    let events = (0..4).flat_map(each).collect();
    let constants = Constants {
        specs: [6400, 640, 704].into_iter().enumerate().map(spec).collect(),
    };
    let method = Method {
        layouts: [100, 10, 11].map(layout).to_vec(),
        trace: Trace::new(events, vec![0, 1, 2, 0], 3).unwrap(),
        gather: gather.to_vec(),
    };
    (constants, method)
}

#[test]
fn a_table_that_is_read_otherwise_too_stays_a_weight_there() {
    let (constants, method) = tied(&[0]);
    let (constants, method, tables) = method.in_place(&constants).unwrap();
    assert_eq!(
        tables,
        [Table {
            stands: 3,
            table: 0
        }]
    );
    assert_eq!(method.trace.probes(), [3, 1, 2, 0]);
    let stands = &constants.specs[3];
    assert_eq!((stands.fqn.as_str(), stands.bytes), ("w0", 0));
    assert_eq!(method.layouts[3].sizes, [100]);
    assert_eq!(method.everything(&constants, 64), 6400 + 640 + 704);
    // Both reads share one stand-in.
    let (constants, method) = tied(&[0, 3]);
    let (constants, both, tables) = method.in_place(&constants).unwrap();
    assert_eq!((both.trace.probes(), tables.len()), (&[3, 1, 2, 3][..], 1));
    assert_eq!(both.everything(&constants, 64), 640 + 704);
}

#[test]
fn a_read_in_place_takes_nothing_of_the_floor() {
    let floor = |gather: &[ProbeId]| {
        let (constants, method) = tied(gather);
        method.floor(&constants, 64).unwrap()
    };
    let bytes = |gather: &[ProbeId]| (floor(gather).hard_minimum, floor(gather).bytes());
    assert_eq!(bytes(&[]), (6400, 6400 + 640 + 704));
    assert_eq!(bytes(&[0]), (6400, 6400 + 640 + 704));
    assert_eq!(bytes(&[0, 3]), (704, 640 + 704));
    assert!(
        !floor(&[0, 3]).to_string().contains("w0"),
        "{}",
        floor(&[0, 3])
    );
    let (constants, method) = tied(&[4]);
    assert!(matches!(
        method.in_place(&constants),
        Err(Error::Internal(_))
    ));
}
