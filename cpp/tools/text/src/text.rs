//! Text to tokens and back.

use tokenizers::tokenizer::{step_decode_stream, Tokenizer};

use crate::chat::Template;
use crate::ffi::Message;
use crate::settings::parsed;

/// A tokenizer, and the chat template of its checkpoint.
pub struct Text {
    tokenizer: Tokenizer,
    template: Option<Template>,
}

pub fn open_text(tokenizer: &str, settings: &str) -> Result<Box<Text>, String> {
    let settings = parsed(settings)?;
    let found = Tokenizer::from_file(tokenizer)
        .map_err(|error| format!("cannot read the tokenizer '{tokenizer}': {error}"))?;
    Ok(Box::new(Text {
        tokenizer: found,
        template: Template::of(&settings)?,
    }))
}

impl Text {
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        self.tokens(text, true)
    }

    pub fn render(&self, messages: &[Message]) -> Result<String, String> {
        let template = self.template.as_ref().ok_or(
            "the model has no chat template: give it text, with --prompt and without --chat",
        )?;
        template.render(messages)
    }

    pub fn encode_rendered(&self, rendered: &str) -> Result<Vec<u32>, String> {
        // The template wrote the special tokens.
        self.tokens(rendered, false)
    }

    fn tokens(&self, text: &str, special: bool) -> Result<Vec<u32>, String> {
        let found = self
            .tokenizer
            .encode(text, special)
            .map_err(|error| format!("cannot make tokens of the text: {error}"))?;
        Ok(found.get_ids().to_vec())
    }

    /// The text that one more token adds; the rest is what the last tokens left to do.
    pub(crate) fn step(
        &self,
        token: u32,
        tokens: &mut Vec<u32>,
        prefix: &mut String,
        prefix_index: &mut usize,
    ) -> Result<Option<String>, String> {
        step_decode_stream(
            &self.tokenizer,
            vec![token],
            true,
            tokens,
            prefix,
            prefix_index,
        )
        .map_err(|error| format!("cannot make text of token {token}: {error}"))
    }
}
