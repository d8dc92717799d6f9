//! Reads in place, and what they take of the floor.

use super::*;
use crate::schedule::Event;

/// A table that is looked up first and multiplied with last, and two weights between; each kernel reads one.
fn tied(gather: &[ProbeId]) -> Methods {
    let spec = |(index, bytes)| WeightSpec {
        fqn: format!("w{index}"),
        bytes,
        stored: bytes,
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
        staging: 0,
    };
    let method = Method {
        layouts: [100, 10, 11].map(layout).to_vec(),
        trace: Trace::new(events, vec![0, 1, 2, 0], 3).unwrap(),
        gather: gather.to_vec(),
        places: Vec::new(),
        share: 1,
    };
    (constants, method).into()
}

#[test]
fn a_table_that_is_read_otherwise_too_stays_a_weight_there() {
    let (methods, tables) = tied(&[0]).in_place(false).unwrap();
    assert_eq!(
        tables,
        [Table {
            stands: 3,
            table: 0
        }]
    );
    let method = &methods.all[0];
    assert_eq!(method.trace.probes(), [3, 1, 2, 0]);
    let stands = &methods.constants.specs[3];
    assert_eq!((stands.fqn.as_str(), stands.bytes), ("w0", 0));
    assert_eq!(method.layouts[3].sizes, [100]);
    assert_eq!(methods.everything(64), 6400 + 640 + 704);
    // Both reads share one stand-in.
    let (both, tables) = tied(&[0, 3]).in_place(false).unwrap();
    let probes = both.all[0].trace.probes();
    assert_eq!((probes, tables.len()), (&[3, 1, 2, 3][..], 1));
    assert_eq!(both.everything(64), 640 + 704);
}

#[test]
fn a_read_in_place_takes_nothing_of_the_floor() {
    let floor = |gather: &[ProbeId]| tied(gather).floor(64).unwrap();
    let bytes = |gather: &[ProbeId]| (floor(gather).hard_minimum, floor(gather).bytes());
    assert_eq!(bytes(&[]), (6400, 6400 + 640 + 704));
    assert_eq!(bytes(&[0]), (6400, 6400 + 640 + 704));
    assert_eq!(bytes(&[0, 3]), (704, 640 + 704));
    assert!(
        !floor(&[0, 3]).to_string().contains("w0"),
        "{}",
        floor(&[0, 3])
    );
    assert!(matches!(
        tied(&[4]).in_place(false),
        Err(Error::Internal(_))
    ));
}

/// One table may be read in place by several methods, and as a weight by others.
#[test]
fn methods_share_what_stands_for_a_table() {
    let mut methods = tied(&[0]);
    let mut other = tied(&[0]).all.remove(0);
    methods.all.push(other.clone());
    other.gather.clear();
    methods.all.push(other);
    let (found, tables) = methods.in_place(false).unwrap();
    assert_eq!((tables.len(), found.constants.specs.len()), (1, 4));
    let probes: Vec<_> = found.all.iter().map(|one| one.trace.probes()).collect();
    assert_eq!(probes, [&[3, 1, 2, 0][..], &[3, 1, 2, 0], &[0, 1, 2, 0]]);
    assert!(found.all.iter().all(|one| one.layouts.len() == 4));
    found.check().unwrap();
}

/// The floor is that of the method that needs most; everything is what any of them reads.
#[test]
fn the_floor_is_that_of_the_method_that_needs_most() {
    let mut methods = tied(&[]);
    let each = |id| [Event::Probe(id), Event::Kernel(id), Event::Release(id)];
    let small = Method {
        trace: Trace::new(each(0).to_vec(), vec![1], 3).unwrap(),
        ..methods.all[0].clone()
    };
    methods.all.insert(0, small);
    let floors = methods.floors(64).unwrap();
    assert_eq!(floors[0].bytes(), 640);
    assert_eq!(methods.floor(64).unwrap(), floors[1]);
    assert_eq!(methods.everything(64), 6400 + 640 + 704);
}
