//! Chat templates, rendered as transformers renders them.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{context, Environment, Error, ErrorKind};
use serde::Serialize;
use serde_json::Map;

use crate::ffi::Message;

/// The template of a checkpoint, and the special tokens that it names.
pub struct Template {
    environment: Environment<'static>,
    tokens: Value,
}

impl Template {
    /// None if the checkpoint has none.
    pub fn of(settings: &Map<String, serde_json::Value>) -> Result<Option<Self>, String> {
        let Some(source) = settings
            .get("chat_template")
            .and_then(|found| found.as_str())
        else {
            return Ok(None);
        };
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|error| error.to_string())?;
        environment.set_syntax(syntax);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |text: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, text))
        });
        environment.add_function("strftime_now", |format: String| {
            chrono::Local::now().format(&format).to_string()
        });
        environment.add_filter("tojson", to_json);
        environment
            .add_template_owned("chat", without_generation(source))
            .map_err(|error| format!("the chat template cannot be read: {error:#}"))?;
        let tokens = settings
            .get("tokens")
            .map_or_else(|| Value::from(()), |tokens| Value::from(Serde(tokens)));
        Ok(Some(Template {
            environment,
            tokens,
        }))
    }

    pub fn render(&self, messages: &[Message]) -> Result<String, String> {
        let messages: Vec<Value> = messages
            .iter()
            .map(|Message { role, content }| context! { role, content })
            .collect();
        let given = context! { messages, tools => (), documents => (), add_generation_prompt => true, ..self.tokens.clone() };
        let template = self
            .environment
            .get_template("chat")
            .map_err(|error| error.to_string())?;
        template
            .render(given)
            .map_err(|error| format!("the chat template does not take these messages: {error:#}"))
    }
}

/// transformers' tag for training, as one that minijinja knows. Its white space is left as it is.
fn without_generation(source: &str) -> String {
    let mut found = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(begin) = rest.find("{%") {
        let end = rest[begin..]
            .find("%}")
            .map_or(rest.len(), |size| begin + size);
        let (before, tag) = rest[..end].split_at(begin);
        found.push_str(before);
        match tag[2..].trim_matches(|one: char| one == '-' || one == '+' || one.is_whitespace()) {
            "generation" => found.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => found.push_str(&tag.replace("endgeneration", "endif")),
            _ => found.push_str(tag),
        }
        rest = &rest[end..];
    }
    found.push_str(rest);
    found
}

/// JSON as Python writes it: with a space after each comma and colon, and no character escaped for HTML.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    options.assert_all_used()?;
    let failed =
        |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let mut bytes = Vec::new();
    if let Some(width) = indent {
        let spaces = " ".repeat(width);
        let pretty = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
        value
            .serialize(&mut serde_json::Serializer::with_formatter(
                &mut bytes, pretty,
            ))
            .map_err(failed)?;
    } else {
        value
            .serialize(&mut serde_json::Serializer::with_formatter(
                &mut bytes, AsPython,
            ))
            .map_err(failed)?;
    }
    Ok(Value::from_safe_string(
        String::from_utf8_lossy(&bytes).into_owned(),
    ))
}

struct AsPython;

impl serde_json::ser::Formatter for AsPython {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(template: &str, messages: &[(&str, &str)]) -> Result<String, String> {
        let settings =
            serde_json::json!({"chat_template": template, "tokens": {"eos_token": "</s>"}});
        let messages: Vec<Message> = messages
            .iter()
            .map(|(role, content)| Message {
                role: (*role).into(),
                content: (*content).into(),
            })
            .collect();
        Template::of(settings.as_object().unwrap())?
            .unwrap()
            .render(&messages)
    }

    #[test]
    fn what_the_templates_of_checkpoints_use() {
        let chat = [
            ("system", " be brief "),
            ("user", "hi"),
            ("assistant", "a</think>b"),
        ];
        let methods = "{%- for m in messages %}\n  {%- if m.role == 'system' %}{{ m['content'].strip() }}\n{% continue %}{% endif %}\
            {{ m.content.split('</think>')[-1] }}{{ eos_token }}\n{% endfor %}";
        assert_eq!(
            rendered(methods, &chat).unwrap(),
            "be brief\nhi</s>\nb</s>\n"
        );
        let tag = "{% generation %}{{ messages[-1].content }}{%- endgeneration %} .";
        assert_eq!(rendered(tag, &chat).unwrap(), "a</think>b .");
        let json = "{{ messages[1] | tojson }}{{ [1, '<é>'] | tojson }}";
        assert_eq!(
            rendered(json, &chat).unwrap(),
            r#"{"role": "user", "content": "hi"}[1, "<é>"]"#
        );
        let space = "{% set ns = namespace(n=0) %}{% for m in messages[1:] %}{% set ns.n = ns.n + loop.index0 %}{% endfor %}{{ ns.n }}";
        assert_eq!(rendered(space, &chat).unwrap(), "1");
        assert_eq!(
            rendered(
                "{{ tools is none }}{{ strftime_now('%Y') | length }}",
                &chat
            )
            .unwrap(),
            "True4"
        );
    }

    #[test]
    fn what_a_template_refuses_is_said() {
        let said = rendered("{{ raise_exception('roles must alternate') }}", &[]).unwrap_err();
        assert!(
            said.contains("does not take these messages") && said.contains("roles must alternate"),
            "{said}"
        );
        assert!(rendered("{% if %}", &[])
            .unwrap_err()
            .contains("cannot be read"));
    }
}
