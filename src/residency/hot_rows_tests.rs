use super::*;

/// Numbers from 0 up to 1, the same in every run.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Eight different rows, each drawn by its weight.
    fn token(&mut self, weights: &[f64]) -> Vec<usize> {
        let mut left = weights.to_vec();
        let draw = |_| {
            let mut at = self.next() * left.iter().sum::<f64>();
            let found = left.iter().position(|weight| {
                at -= weight;
                at < 0.0
            });
            let found = found.unwrap_or_else(|| left.iter().rposition(|&one| one > 0.0).unwrap());
            left[found] = 0.0;
            found
        };
        (0..8).map(draw).collect()
    }
}

/// Requests that hit of the last half of so many rounds of 16 tokens, of all of them, and how many rows moved in all.
fn play(rows: &mut HotRows, weights: &[f64], rounds: usize) -> (f64, usize) {
    let mut draws = Draws(88172645463325252);
    let (mut hits, mut all, mut moves) = (0, 0, 0);
    for round in 0..rounds {
        let mut asked = vec![0; weights.len()];
        for _ in 0..16 {
            for row in draws.token(weights) {
                asked[row] += 1;
            }
        }
        let found = rows.end_round(&asked);
        assert_eq!(found.hits + found.misses, 16 * 8);
        assert!(found.moves.len() as u64 <= found.misses);
        if round >= rounds / 2 {
            hits += found.hits;
            all += found.hits + found.misses;
        }
        moves += found.moves.len();
    }
    (hits as f64 / all as f64, moves)
}

/// Row `i` of the hottest at a place that says nothing of it.
fn zipf() -> Vec<f64> {
    (0..128)
        .map(|row| 1.0 / (1 + row * 77 % 128) as f64)
        .collect()
}

#[test]
fn the_rows_that_are_asked_for_most_come_to_the_device() {
    let (hit, moves) = play(&mut HotRows::new(128, 32), &zipf(), 64);
    // The 32 best of all have two thirds of the requests, where eight differ for each token; the first 32 have a quarter.
    let mut best = HotRows::new(128, 32);
    let mut hottest: Vec<u32> = (0..128).collect();
    hottest.sort_by(|&a, &b| zipf()[b as usize].total_cmp(&zipf()[a as usize]));
    best.holds.copy_from_slice(&hottest[..32]);
    let (most, _) = play(&mut best, &zipf(), 64);
    let still = HotRows::new(128, 32).holds.len() as f64 / 128.0;
    assert!(most > 0.6 && hit > most - 0.02, "{hit} of {most}");
    assert!(hit > 2.0 * still && moves < 128, "{hit}, {moves} moves");
}

#[test]
fn under_even_routing_next_to_nothing_moves() {
    let (hit, moves) = play(&mut HotRows::new(128, 32), &[1.0; 128], 256);
    assert!((hit - 0.25).abs() < 0.03, "{hit}");
    // Of 32,768 requests three quarters are for rows that are not there.
    assert!(moves < 100, "{moves}");
}

#[test]
fn what_is_on_its_way_is_read_in_host_memory_until_the_next_round() {
    let mut rows = HotRows::new(4, 2);
    let round = rows.end_round(&[0, 30, 0, 40]);
    let moves = vec![(0, 3)];
    assert_eq!(
        round,
        Round {
            hits: 30,
            misses: 40,
            moves
        }
    );
    assert_eq!(rows.places(), [None, Some(1), None, None]);
    assert!(rows.any_coming());
    let round = rows.end_round(&[0, 1, 0, 1]);
    assert_eq!((round.hits, round.misses, round.moves.len()), (1, 1, 0));
    assert_eq!(rows.places(), [None, Some(1), None, Some(0)]);
    assert!(!rows.any_coming());
}

#[test]
fn rows_that_nobody_asked_for_do_not_move_and_few_requests_move_none() {
    let mut rows = HotRows::new(6, 3);
    assert!(rows.end_round(&[0, 0, 0, 4, 0, 0]).moves.is_empty());
    assert_eq!(rows.end_round(&[0, 0, 0, 2, 0, 0]).moves, [(0, 3)]);
    // The score of row 3 is still high: it goes to the device again when it is asked for again, and not before.
    assert_eq!(
        rows.go_home().into_iter().flatten().collect::<Vec<_>>(),
        [0]
    );
    assert!(rows.end_round(&[1, 1, 1, 0, 0, 0]).moves.is_empty());
    assert_eq!(rows.end_round(&[0, 1, 1, 3, 0, 0]).moves, [(0, 3)]);
}

#[test]
fn home_are_the_rows_of_the_head() {
    let mut rows = HotRows::new(8, 4);
    assert_eq!(
        rows.end_round(&[0, 99, 0, 0, 0, 90, 80, 0]).moves,
        [(0, 5), (2, 6)]
    );
    assert_eq!(rows.end_round(&[0, 0, 0, 0, 0, 0, 0, 99]).moves, [(3, 7)]);
    assert_eq!(rows.go_home(), [0..1, 2..4]);
    assert_eq!(
        rows.places()[..5],
        [Some(0), Some(1), Some(2), Some(3), None]
    );
    assert!(rows.go_home().is_empty());
}

#[test]
fn a_weight_that_is_there_as_a_whole_or_not_at_all_has_nothing_to_move() {
    for places in [0, 4, 9] {
        let round = HotRows::new(4, places).end_round(&[0, 0, 0, 1000]);
        assert!(round.moves.is_empty());
        assert_eq!(round.hits, if places == 0 { 0 } else { 1000 });
    }
}
