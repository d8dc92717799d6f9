//! What a program says about generation: the JSON of its constant method `get_llm_settings`.

use serde_json::{Map, Value};

use crate::ffi::Sampling;

/// The settings of a program; without any, all is missing.
pub fn parsed(settings: &str) -> Result<Map<String, Value>, String> {
    if settings.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_str(settings)
        .map_err(|error| format!("get_llm_settings of the program is no JSON object: {error}"))
}

/// As `ws.LLM` takes them: a checkpoint that does not sample has a temperature of 0.
pub fn defaults_of(settings: &str) -> Result<Sampling, String> {
    let settings = parsed(settings)?;
    let given = |name: &str| settings.get("generation").and_then(|all| all.get(name));
    let number = |name: &str, otherwise: f64| {
        given(name).and_then(Value::as_f64).unwrap_or(otherwise) as f32
    };
    let samples = given("do_sample").and_then(Value::as_bool).unwrap_or(false);
    Ok(Sampling {
        temperature: if samples {
            number("temperature", 1.0)
        } else {
            0.0
        },
        top_k: given("top_k").and_then(Value::as_u64).unwrap_or(0) as u32,
        top_p: number("top_p", 1.0),
        repetition_penalty: number("repetition_penalty", 1.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_the_checkpoint() {
        let found =
            defaults_of(r#"{"generation": {"do_sample": true, "temperature": 0.25, "top_k": 40}}"#)
                .unwrap();
        assert_eq!(
            (found.temperature, found.top_k, found.top_p),
            (0.25, 40, 1.0)
        );
        let found = defaults_of(r#"{"generation": {"temperature": 0.25}}"#).unwrap();
        assert_eq!((found.temperature, found.repetition_penalty), (0.0, 1.0));
        assert_eq!(defaults_of("").unwrap().temperature, 0.0);
        assert!(defaults_of("[")
            .err()
            .unwrap()
            .contains("is no JSON object"));
    }
}
