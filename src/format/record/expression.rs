//! Integer expressions over the sizes of a call, written in postfix: `s0 1 + 8 %` is `(seq + 1) % 8`.
//!
//! | token | value |
//! |---|---|
//! | `-12` | a decimal integer |
//! | `s3` | symbol 3 |
//! | `x` | the size that a solution starts from; only there |
//! | `+ - * // % min max` | of two values; `//` and `%` round down, as in Python |
//! | `== != < <= > >= and or` | of two values: 1 or 0 |
//! | `not` | of one value: 1 or 0 |
//!
//! A text is checked once, when the record is read: known tokens, no operator without its values, one value at the end.
//! So evaluation can fail by arithmetic alone.

/// Most tokens of one expression.
const MAX_TOKENS: usize = 1024;
/// Most values that wait for an operator at one time.
const MAX_DEPTH: usize = 64;

/// An expression that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    tokens: Vec<Token>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Int(i64),
    Symbol(u32),
    Size,
    Not,
    Binary(Operator),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Min,
    Max,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    And,
    Or,
}

/// Each operator's token, and how tightly it binds in infix; `min` and `max` are written as calls.
const OPERATORS: [(&str, Operator, u8); 15] = [
    ("+", Operator::Add, SUM),
    ("-", Operator::Sub, SUM),
    ("*", Operator::Mul, PRODUCT),
    ("//", Operator::Div, PRODUCT),
    ("%", Operator::Mod, PRODUCT),
    ("min", Operator::Min, ATOM),
    ("max", Operator::Max, ATOM),
    ("==", Operator::Eq, COMPARISON),
    ("!=", Operator::Ne, COMPARISON),
    ("<", Operator::Lt, COMPARISON),
    ("<=", Operator::Le, COMPARISON),
    (">", Operator::Gt, COMPARISON),
    (">=", Operator::Ge, COMPARISON),
    ("and", Operator::And, 1),
    ("or", Operator::Or, 0),
];
const NOT: u8 = 2;
const COMPARISON: u8 = 3;
const SUM: u8 = 4;
const PRODUCT: u8 = 5;
const ATOM: u8 = 6;

impl Expression {
    /// Reads a postfix text over `symbols` symbols; `size`: whether it may name `x`.
    pub fn parse(text: &str, symbols: usize, size: bool) -> Result<Expression, String> {
        let mut tokens = Vec::new();
        let mut depth = 0;
        for word in text.split(' ') {
            let token = token(word, symbols, size)?;
            let taken = match token {
                Token::Binary(_) => 2,
                Token::Not => 1,
                _ => 0,
            };
            if depth < taken {
                return Err(format!("has {depth} values for '{word}', expected {taken}"));
            }
            depth = depth - taken + 1;
            tokens.push(token);
            if depth > MAX_DEPTH || tokens.len() > MAX_TOKENS {
                return Err(format!(
                    "has more than {MAX_TOKENS} tokens, or {MAX_DEPTH} open values"
                ));
            }
        }
        tokens.shrink_to_fit();
        match depth {
            1 => Ok(Expression { tokens }),
            _ => Err(format!("leaves {depth} values, expected 1")),
        }
    }

    /// The symbols that it names, as often as it does.
    pub fn symbols(&self) -> impl Iterator<Item = u32> + '_ {
        self.tokens.iter().filter_map(|token| match token {
            Token::Symbol(symbol) => Some(*symbol),
            _ => None,
        })
    }

    /// Its value over the symbols' values and the size `x`. `None`: an overflow, or a division by zero.
    pub fn evaluate(&self, symbols: &[i64], x: i64) -> Option<i64> {
        let mut stack = [0; MAX_DEPTH];
        let mut depth = 0;
        for token in &self.tokens {
            let value = match *token {
                Token::Int(value) => value,
                Token::Symbol(symbol) => *symbols.get(symbol as usize)?,
                Token::Size => x,
                Token::Not => {
                    depth -= 1;
                    i64::from(stack[depth] == 0)
                }
                Token::Binary(operator) => {
                    depth -= 2;
                    operator.apply(stack[depth], stack[depth + 1])?
                }
            };
            stack[depth] = value;
            depth += 1;
        }
        Some(stack[0])
    }

    /// Whether it is a number by itself.
    pub fn is_literal(&self) -> bool {
        matches!(self.tokens.as_slice(), [Token::Int(_)])
    }

    /// In infix, with the symbols' names and that of the size `x`.
    pub fn infix<'a>(&self, symbol: impl Fn(u32) -> &'a str, x: &str) -> String {
        let mut stack: Vec<Infix> = Vec::new();
        for token in &self.tokens {
            let next = match *token {
                Token::Int(value) => Infix::atom(value.to_string()),
                Token::Symbol(number) => Infix::atom(symbol(number).to_owned()),
                Token::Size => Infix::atom(x.to_owned()),
                Token::Not => stack.pop().map_or_else(Infix::default, |of| Infix {
                    text: format!("not {}", of.within(NOT, true)),
                    binds: NOT,
                    operator: None,
                }),
                Token::Binary(operator) => {
                    let right = stack.pop().unwrap_or_default();
                    let left = stack.pop().unwrap_or_default();
                    Infix::binary(operator, left, right)
                }
            };
            stack.push(next);
        }
        stack.pop().unwrap_or_default().text
    }
}

fn token(word: &str, symbols: usize, size: bool) -> Result<Token, String> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if let Some((_, operator, _)) = OPERATORS.iter().find(|(name, ..)| *name == word) {
        return Ok(Token::Binary(*operator));
    }
    match (word, word.strip_prefix('s')) {
        ("not", _) => return Ok(Token::Not),
        ("x", _) if size => return Ok(Token::Size),
        (_, Some(number)) if digits(number) => {
            let known = number.parse::<u32>().ok();
            let known = known.filter(|&number| (number as usize) < symbols);
            return match known {
                Some(number) => Ok(Token::Symbol(number)),
                None => Err(format!("names symbol {number} of {symbols}")),
            };
        }
        _ => {}
    }
    let value = word.parse().ok();
    let value = value.filter(|_| digits(word.strip_prefix('-').unwrap_or(word)));
    value
        .map(Token::Int)
        .ok_or_else(|| format!("holds '{word}', which is not a token"))
}

impl Operator {
    fn apply(self, left: i64, right: i64) -> Option<i64> {
        Some(match self {
            Operator::Add => left.checked_add(right)?,
            Operator::Sub => left.checked_sub(right)?,
            Operator::Mul => left.checked_mul(right)?,
            Operator::Div => {
                let down = left.checked_rem(right)? != 0 && (left < 0) != (right < 0);
                left.checked_div(right)? - i64::from(down)
            }
            Operator::Mod => match left.checked_rem(right)? {
                rest if rest != 0 && (rest < 0) != (right < 0) => rest + right,
                rest => rest,
            },
            Operator::Min => left.min(right),
            Operator::Max => left.max(right),
            Operator::Eq => i64::from(left == right),
            Operator::Ne => i64::from(left != right),
            Operator::Lt => i64::from(left < right),
            Operator::Le => i64::from(left <= right),
            Operator::Gt => i64::from(left > right),
            Operator::Ge => i64::from(left >= right),
            Operator::And => i64::from(left != 0 && right != 0),
            Operator::Or => i64::from(left != 0 || right != 0),
        })
    }
}

/// A part of an expression in infix.
#[derive(Default)]
struct Infix {
    text: String,
    binds: u8,
    operator: Option<Operator>,
}

impl Infix {
    fn atom(text: String) -> Infix {
        Infix {
            text,
            binds: ATOM,
            operator: None,
        }
    }

    /// As an operand of something that binds as tightly as `binds`; `alike`: where it may bind no tighter than that.
    fn within(self, binds: u8, alike: bool) -> String {
        match self.binds > binds || self.binds == binds && alike {
            true => self.text,
            false => format!("({})", self.text),
        }
    }

    fn binary(operator: Operator, left: Infix, right: Infix) -> Infix {
        let row = OPERATORS.iter().find(|(_, one, _)| *one == operator);
        let (name, binds) = row.map_or(("", ATOM), |(name, _, binds)| (name, *binds));
        if binds == ATOM {
            return Infix::atom(format!("{name}({}, {})", left.text, right.text));
        }
        // Products of different kinds are told apart, and comparisons do not form chains.
        let left_alike = match binds {
            PRODUCT => left.operator == Some(operator),
            COMPARISON => false,
            _ => true,
        };
        let right_alike = matches!(operator, Operator::And | Operator::Or);
        let mut text = left.within(binds, left_alike);
        match operator {
            Operator::Mul => text.push('*'),
            _ => {
                text.push(' ');
                text.push_str(name);
                text.push(' ');
            }
        }
        text.push_str(&right.within(binds, right_alike));
        Infix {
            text,
            binds,
            operator: Some(operator),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Expression {
        Expression::parse(text, 3, true).unwrap()
    }

    fn value(text: &str) -> Option<i64> {
        parsed(text).evaluate(&[3, 5, 0], 17)
    }

    #[test]
    fn operators_compute_as_in_python() {
        let cases = [
            ("7 2 //", 3),
            ("-7 2 //", -4),
            ("7 -2 //", -4),
            ("-7 -2 //", 3),
            ("7 2 %", 1),
            ("-7 2 %", 1),
            ("7 -2 %", -1),
            ("-7 -2 %", -1),
            ("-8 2 //", -4),
            ("-8 2 %", 0),
            ("s0 s1 +", 8),
            ("s0 s1 -", -2),
            ("8 s0 *", 24),
            ("x s0 %", 2),
            ("s0 s1 min", 3),
            ("s0 s1 max", 5),
            ("s0 3 ==", 1),
            ("s0 3 !=", 0),
            ("s0 s1 <", 1),
            ("3 s0 <", 0),
            ("3 s0 <=", 1),
            ("s1 s0 >", 1),
            ("3 s0 >=", 1),
            ("s0 s2 and", 0),
            ("s0 7 and", 1),
            ("s2 7 or", 1),
            ("s2 0 or", 0),
            ("s2 not", 1),
            ("s0 not", 0),
            ("1 2 3 + +", 6),
        ];
        for (text, expected) in cases {
            assert_eq!(value(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_computed_is_none() {
        let max = i64::MAX;
        let min = i64::MIN;
        for text in [
            "s0 s2 //".to_owned(),
            "s0 s2 %".to_owned(),
            format!("{max} 1 +"),
            format!("{min} 1 -"),
            format!("{max} 2 *"),
            format!("{min} -1 //"),
        ] {
            assert_eq!(value(&text), None, "{text}");
        }
        // A symbol that has no value.
        assert_eq!(parsed("s2").evaluate(&[1, 2], 0), None);
    }

    #[test]
    fn what_is_not_an_expression_is_refused() {
        let long = format!("1{}", " 1 +".repeat(MAX_TOKENS / 2));
        let deep = format!("1{} 1", " 1".repeat(MAX_DEPTH - 1));
        let cases = [
            ("", "'', which is not a token"),
            ("s0  1 +", "'', which is not a token"),
            ("s0 1", "leaves 2 values"),
            ("s0 +", "has 1 values for '+', expected 2"),
            ("not", "has 0 values for 'not', expected 1"),
            ("s3", "names symbol 3 of 3"),
            ("s99999999999", "names symbol 99999999999 of 3"),
            ("s+1", "'s+1', which is not a token"),
            ("+1", "'+1', which is not a token"),
            ("--1", "'--1', which is not a token"),
            ("9223372036854775808", "which is not a token"),
            ("s0 2 **", "'**', which is not a token"),
            (&long, "more than 1024 tokens"),
            (&deep, "or 64 open values"),
        ];
        for (text, expected) in cases {
            let what = Expression::parse(text, 3, true).unwrap_err();
            assert!(what.contains(expected), "{text}: {what}");
        }
        let what = Expression::parse("x", 3, false).unwrap_err();
        assert!(what.contains("'x', which is not a token"), "{what}");
        assert!(Expression::parse(&long[..long.len() - 4], 3, true).is_ok());
        assert!(Expression::parse("-0", 0, false).is_ok());
    }

    #[test]
    fn infix_has_the_brackets_that_it_needs() {
        let names = ["seq", "b", "n"];
        let cases = [
            ("8 s0 *", "8*seq"),
            ("s0 1 + 8 % 0 ==", "(seq + 1) % 8 == 0"),
            ("s0 s1 - s2 -", "seq - b - n"),
            ("s0 s1 s2 - -", "seq - (b - n)"),
            ("s0 8 // 8 *", "(seq // 8)*8"),
            ("s0 s1 * s2 *", "seq*b*n"),
            ("8 s0 * 1 +", "8*seq + 1"),
            ("s0 s1 min s2 max", "max(min(seq, b), n)"),
            (
                "s0 1 == s1 2 < and s2 not or",
                "seq == 1 and b < 2 or not n",
            ),
            (
                "s0 s1 or s2 and s0 not not and",
                "(seq or b) and n and not not seq",
            ),
            ("s0 1 == 2 ==", "(seq == 1) == 2"),
            ("s0 s1 and not", "not (seq and b)"),
            ("s0 not 1 +", "(not seq) + 1"),
            ("x 8 //", "size // 8"),
        ];
        for (text, expected) in cases {
            let infix = parsed(text).infix(|symbol| names[symbol as usize], "size");
            assert_eq!(infix, expected, "{text}");
        }
    }
}
