//! Text for `weightstream-generate`: tokens by a `tokenizer.json`, chats by the template of a checkpoint.

mod chat;
mod pieces;
mod settings;
mod text;

use pieces::Pieces;
use settings::defaults_of;
use text::{open_text, Text};

#[cxx::bridge(namespace = "weightstream::tool")]
mod ffi {
    /// What somebody said in a chat.
    struct Message {
        role: String,
        content: String,
    }

    /// How tokens are drawn where nothing is said. A temperature of 0 takes the most probable one.
    struct Sampling {
        temperature: f32,
        top_k: u32,
        top_p: f32,
        repetition_penalty: f32,
    }

    extern "Rust" {
        /// What a program's `get_llm_settings` says; an empty text says nothing.
        fn defaults_of(settings: &str) -> Result<Sampling>;
        /// A text as JSON has it.
        fn json_text(text: &str) -> String;

        type Text;
        /// A tokenizer file, and the same settings.
        fn open_text(tokenizer: &str, settings: &str) -> Result<Box<Text>>;
        /// The tokens of a text, with those that the tokenizer puts before and after it.
        fn encode(self: &Text, text: &str) -> Result<Vec<u32>>;
        /// A chat up to the beginning of an answer, as text.
        fn render(self: &Text, messages: &[Message]) -> Result<String>;
        /// The tokens of what `render` gives.
        fn encode_rendered(self: &Text, rendered: &str) -> Result<Vec<u32>>;

        type Pieces;
        /// For the text of an answer, which ends before the first of `stops`.
        fn pieces(stops: Vec<String>) -> Box<Pieces>;
        /// What is certain of the text with one more token: empty where a character or a stop may go on.
        fn take(self: &mut Pieces, text: &Text, token: u32) -> Result<String>;
        /// Whether a stop has come.
        fn stopped(self: &Pieces) -> bool;
        /// What was held back, where no more tokens come.
        fn rest(self: &mut Pieces) -> String;
    }
}

fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn pieces(stops: Vec<String>) -> Box<Pieces> {
    Box::new(Pieces::new(stops))
}
