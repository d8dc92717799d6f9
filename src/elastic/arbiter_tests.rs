use super::*;

#[path = "arbiter_random_tests.rs"]
mod random;

fn wants(name: &str, total: u64, floor: u64, priority: i64) -> Wants {
    Wants {
        name: name.to_owned(),
        total,
        floor,
        priority,
    }
}

/// Two or more of one size, without floors.
fn equals<const N: usize>(cap: u64, total: u64) -> (Arbiter, [TenantId; N]) {
    let mut arbiter = Arbiter::new(cap, 1);
    let ids = [(); N].map(|()| arbiter.join(wants("one", total, 0, 0)).unwrap());
    (arbiter, ids)
}

fn take_turns(arbiter: &mut Arbiter, ids: &[TenantId], rounds: usize) {
    for _ in 0..rounds {
        ids.iter().for_each(|&id| arbiter.pass(id));
    }
}

#[test]
fn a_tenant_holds_its_floor_until_it_passes() {
    let mut arbiter = Arbiter::new(1000, 64);
    let a = arbiter.join(wants("a", 700, 100, 0)).unwrap();
    let b = arbiter.join(wants("b", 500, 90, 0)).unwrap();
    assert_eq!((arbiter.grant(a), arbiter.grant(b)), (100, 90));
    arbiter.pass(a);
    assert_eq!((arbiter.grant(a), arbiter.grant(b)), (700, 90));
    arbiter.leave(a);
    assert_eq!(arbiter.grants().collect::<Vec<_>>(), [(b, 90)]);
    assert_eq!(arbiter.grant(a), 0);
    let again = arbiter.join(wants("a", 700, 100, 0)).unwrap();
    assert_ne!(again, a);
}

#[test]
fn floors_above_the_cap_are_refused_with_the_least_cap() {
    let mut arbiter = Arbiter::new(1000, 1);
    arbiter.join(wants("encoder", 700, 600, 0)).unwrap();
    let error = arbiter.join(wants("decoder", 900, 500, 0)).unwrap_err();
    let expected = "a cap of 1000 bytes is too small: the tenants need at least 1100 bytes: \
                    'encoder' 600 bytes, 'decoder' 500 bytes";
    assert_eq!(error.to_string(), expected);
    assert_eq!(arbiter.grants().count(), 1);
    let error = arbiter.set_cap(599).unwrap_err();
    assert!(
        matches!(
            &error,
            Error::CapTooSmall {
                cap: 599,
                least: 600,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(arbiter.cap(), 1000);
    arbiter.set_cap(1100).unwrap();
    arbiter.join(wants("decoder", 900, 500, 0)).unwrap();
}

#[test]
fn a_tenant_that_wants_more_takes_it_from_others() {
    let mut arbiter = Arbiter::new(1000, 1);
    let one = arbiter.join(wants("one", 900, 100, 0)).unwrap();
    let other = arbiter.join(wants("other", 900, 100, 0)).unwrap();
    arbiter.pass(one);
    assert_eq!((arbiter.grant(one), arbiter.grant(other)), (900, 100));
    arbiter.set_wants(other, 1200, 300).unwrap();
    assert_eq!((arbiter.grant(one), arbiter.grant(other)), (700, 300));
    let error = arbiter.set_wants(other, 1200, 901).unwrap_err();
    assert!(
        matches!(
            &error,
            Error::CapTooSmall {
                cap: 1000,
                least: 1001,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("'other' 901 bytes"), "{error}");
    assert_eq!((arbiter.grant(one), arbiter.grant(other)), (700, 300));
    arbiter.set_wants(one, 400, 50).unwrap();
    assert_eq!((arbiter.grant(one), arbiter.grant(other)), (400, 300));
}

#[test]
fn a_lower_cap_takes_from_the_lowest() {
    let (mut arbiter, [a, b, c]) = equals(300, 100);
    take_turns(&mut arbiter, &[a, b, c, c, c, b], 10);
    arbiter.set_rank(a, Rank::of(1));
    arbiter.set_cap(150).unwrap();
    assert_eq!(arbiter.grant(a), 100);
    assert_eq!(arbiter.grant(b) + arbiter.grant(c), 50);
    arbiter.set_cap(300).unwrap();
    assert_eq!(arbiter.grants().map(|(_, bytes)| bytes).sum::<u64>(), 150);
}

#[test]
fn open_leases_are_never_taken() {
    let (mut arbiter, [a, b]) = equals(100, 100);
    take_turns(&mut arbiter, &[a], 3);
    arbiter.set_least(a, 80);
    take_turns(&mut arbiter, &[b], 500);
    assert_eq!((arbiter.grant(a), arbiter.grant(b)), (80, 20));
    let error = arbiter.set_cap(79).unwrap_err().to_string();
    assert!(
        error.contains("at least 80 bytes") && error.contains("80 bytes until its pass has ended"),
        "{error}"
    );
    arbiter.set_cap(80).unwrap();
    assert_eq!((arbiter.grant(a), arbiter.grant(b)), (80, 0));
    arbiter.set_least(a, 0);
    take_turns(&mut arbiter, &[b], 500);
    assert_eq!((arbiter.grant(a), arbiter.grant(b)), (0, 80));
    // Leases above the grant: others give what they can.
    arbiter.set_least(b, 70);
    arbiter.set_least(a, 30);
    assert_eq!((arbiter.grant(a), arbiter.grant(b)), (10, 70));
}

#[test]
fn a_priority_comes_before_every_rule() {
    let mut arbiter = Arbiter::new(1000, 1);
    let low = arbiter.join(wants("low", 900, 50, 0)).unwrap();
    let high = arbiter.join(wants("high", 800, 50, 7)).unwrap();
    take_turns(&mut arbiter, &[low], 100);
    arbiter.pass(high);
    assert_eq!((arbiter.grant(low), arbiter.grant(high)), (200, 800));
    take_turns(&mut arbiter, &[low], 1000);
    assert_eq!((arbiter.grant(low), arbiter.grant(high)), (200, 800));
    let text = arbiter.explain(low);
    assert!(text.ends_with("above it: 'high'"), "{text}");
    arbiter.set_rank(low, Rank::of(8));
    arbiter.pass(low);
    assert_eq!((arbiter.grant(low), arbiter.grant(high)), (900, 100));
}

/// Little is not worth a change, but bytes of a lower priority are never kept from a higher one.
#[test]
fn a_priority_takes_even_little() {
    let mut arbiter = Arbiter::new(1000, 1);
    let low = arbiter.join(wants("low", 10, 0, 0)).unwrap();
    arbiter.pass(low);
    let high = arbiter.join(wants("high", 1000, 0, 1)).unwrap();
    arbiter.pass(high);
    assert_eq!((arbiter.grant(low), arbiter.grant(high)), (0, 1000));
}

#[test]
fn equal_tenants_in_turn_share_what_is_there() {
    let (mut arbiter, [a, b]) = equals(1000, 1000);
    take_turns(&mut arbiter, &[a], 10);
    take_turns(&mut arbiter, &[a, b], 100);
    for id in [a, b] {
        assert!(arbiter.grant(id) >= 450, "{}", arbiter.explain(id));
    }
}

#[test]
fn a_tenant_that_joins_late_gets_its_part() {
    let (mut arbiter, [a, b]) = equals(1000, 1000);
    take_turns(&mut arbiter, &[a, b], 1000);
    let late = arbiter.join(wants("late", 1000, 10, 0)).unwrap();
    take_turns(&mut arbiter, &[a, b, late], 30);
    for id in [a, b, late] {
        assert!(
            (250..=420).contains(&arbiter.grant(id)),
            "{}",
            arbiter.explain(id)
        );
    }
}

/// What the idle tenant holds is less than a change is worth.
#[test]
fn hysteresis_starves_nobody() {
    let mut arbiter = Arbiter::new(120, 1);
    let idle = arbiter.join(wants("idle", 20, 0, 0)).unwrap();
    arbiter.pass(idle);
    let busy = arbiter.join(wants("busy", 1000, 100, 0)).unwrap();
    take_turns(&mut arbiter, &[busy], 100);
    assert_eq!((arbiter.grant(idle), arbiter.grant(busy)), (0, 120));
}

/// Even where its part among equals is next to nothing at first.
#[test]
fn a_small_part_at_first_is_not_the_last() {
    let mut arbiter = Arbiter::new(120, 1);
    let idle = arbiter.join(wants("idle", 10_000, 0, 0)).unwrap();
    arbiter.pass(idle);
    arbiter.set_cap(20).unwrap();
    arbiter.set_cap(120).unwrap();
    let busy = arbiter.join(wants("busy", 1000, 100, 0)).unwrap();
    take_turns(&mut arbiter, &[busy], 100);
    assert_eq!((arbiter.grant(idle), arbiter.grant(busy)), (0, 120));
}

/// The sum of changes of all grants in a pass.
fn change(arbiter: &mut Arbiter, id: TenantId) -> u64 {
    let before: Vec<_> = arbiter.grants().collect();
    arbiter.pass(id);
    let pairs = before.iter().zip(arbiter.grants());
    pairs.map(|(old, new)| old.1.abs_diff(new.1)).sum()
}

#[test]
fn grants_come_to_rest() {
    for cap in [20, 500, 1000, 1500, 1980, 1995] {
        let (mut arbiter, [a, b]) = equals(cap, 1000);
        take_turns(&mut arbiter, &[a, b], 200);
        let rounds = 0..100;
        let moved = rounds.map(|_| change(&mut arbiter, a) + change(&mut arbiter, b));
        assert_eq!(moved.sum::<u64>(), 0, "cap {cap}");
        assert!(arbiter.grant(a) > 0 && arbiter.grant(b) > 0, "cap {cap}");
    }
}

#[test]
fn a_grant_is_explained_in_a_sentence() {
    let (mut arbiter, [a, _]) = equals(1500, 1000);
    arbiter.pass(a);
    assert_eq!(
        arbiter.explain(a),
        "'one' may hold 1000 bytes of 1000 bytes (floor 0 bytes, priority 0, passes 1) by the rule 'pass rate'; \
         above it: nobody"
    );
}
