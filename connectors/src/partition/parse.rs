//! Parses the text of a predicate (the grammar stands in `predicate`), with errors that point at the place.

use std::iter::Peekable;

use forebay_actors::Fault;

use super::expr::{Compare, Expr, Literal};

/// Parentheses and `not`s within each other, at most: each costs stack.
const DEEPEST: usize = 50;

pub(super) fn parse(text: &str) -> Result<Expr, Fault> {
    let tokens = tokens(text).map_err(|error| error.fault(text))?;
    if tokens.is_empty() {
        return Ok(Expr::And(Vec::new()));
    }
    let mut parser = Parser { tokens: tokens.into_iter().peekable(), end: text.len(), depth: 0 };
    parser.whole().map_err(|error| error.fault(text))
}

/// What is wrong, and the byte where it begins.
struct SyntaxError(usize, String);

impl SyntaxError {
    fn fault(self, text: &str) -> Fault {
        let Self(at, what) = self;
        let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let before = text[..at].chars().count();
        Fault::user(format!("cannot read the predicate: {what}\n  {line}\n  {:before$}^", ""))
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    /// A column or a keyword.
    Name(String),
    /// A column in backquotes.
    Quoted(String),
    Literal(Literal),
    Compare(Compare),
    Open,
    Close,
    Comma,
}

impl Token {
    fn is_word(&self, word: &str) -> bool {
        matches!(self, Self::Name(text) if text.eq_ignore_ascii_case(word))
    }
}

type PlacedToken = (usize, Token);

fn tokens(text: &str) -> Result<Vec<PlacedToken>, SyntaxError> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let (token, length) = match c {
            c if c.is_whitespace() => {
                at += c.len_utf8();
                continue;
            }
            '(' => (Token::Open, 1),
            ')' => (Token::Close, 1),
            ',' => (Token::Comma, 1),
            '\'' | '"' => {
                let (value, length) =
                    quoted(rest, c).ok_or_else(|| SyntaxError(at, format!("this {c} is never closed")))?;
                (Token::Literal(Literal::Text(value)), length)
            }
            '`' => {
                let (name, length) = quoted(rest, c).ok_or_else(|| SyntaxError(at, "this ` is never closed".into()))?;
                (Token::Quoted(name), length)
            }
            '<' | '>' | '=' | '!' => comparison(rest).map_err(|what| SyntaxError(at, what.into()))?,
            '0'..='9' | '-' | '+' | '.' => {
                let length = rest.find(|c: char| !(c.is_alphanumeric() || "+-._:".contains(c))).unwrap_or(rest.len());
                let number = &rest[..length];
                if number.parse::<f64>().is_err() || number.contains(|c: char| c.is_alphabetic() && !"eE".contains(c)) {
                    return Err(SyntaxError(
                        at,
                        format!("`{number}` is no number; a date or a text stands in quotes: '{number}'"),
                    ));
                }
                (Token::Literal(Literal::Number(number.to_owned())), length)
            }
            c if c.is_alphabetic() || c == '_' => {
                let length = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
                (Token::Name(rest[..length].to_owned()), length)
            }
            c => return Err(SyntaxError(at, format!("`{c}` has no meaning here"))),
        };
        tokens.push((at, token));
        at += length;
    }
    Ok(tokens)
}

/// The text from one quote to the next, where two quotes stand for one, and its length in bytes with the quotes.
fn quoted(text: &str, quote: char) -> Option<(String, usize)> {
    let mut value = String::new();
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        if c != quote {
            value.push(c);
        } else if chars.next_if(|&(_, next)| next == quote).is_some() {
            value.push(quote);
        } else {
            return Some((value, at + 1));
        }
    }
    None
}

fn comparison(text: &str) -> Result<(Token, usize), &'static str> {
    let (compare, length) = match text.as_bytes() {
        [b'=', b'=', ..] => return Err("`==` has no meaning here, equality is one `=`"),
        [b'<', b'>', ..] => return Err("`<>` has no meaning here, write `!=`"),
        [b'=', ..] => (Compare::Equal, 1),
        [b'!', b'=', ..] => (Compare::NotEqual, 2),
        [b'<', b'=', ..] => (Compare::AtMost, 2),
        [b'<', ..] => (Compare::Less, 1),
        [b'>', b'=', ..] => (Compare::AtLeast, 2),
        [b'>', ..] => (Compare::Greater, 1),
        _ => return Err("`!` has no meaning here, write `not` or `!=`"),
    };
    Ok((Token::Compare(compare), length))
}

struct Parser<I: Iterator<Item = PlacedToken>> {
    tokens: Peekable<I>,
    end: usize,
    depth: usize,
}

impl<I: Iterator<Item = PlacedToken>> Parser<I> {
    fn whole(&mut self) -> Result<Expr, SyntaxError> {
        let expr = self.predicate()?;
        match self.tokens.next() {
            None => Ok(expr),
            Some((at, _)) => Err(SyntaxError(at, "expected `and`, `or` or the end".into())),
        }
    }

    fn predicate(&mut self) -> Result<Expr, SyntaxError> {
        let mut all = vec![self.term()?];
        while self.take("or") {
            all.push(self.term()?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expr::Or(all) })
    }

    fn term(&mut self) -> Result<Expr, SyntaxError> {
        let mut all = vec![self.factor()?];
        while self.take("and") {
            all.push(self.factor()?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expr::And(all) })
    }

    fn factor(&mut self) -> Result<Expr, SyntaxError> {
        if self.depth == DEEPEST {
            return Err(SyntaxError(
                self.place(),
                format!("more than {DEEPEST} parentheses and `not`s within each other"),
            ));
        }
        self.depth += 1;
        let expr = if self.take("not") {
            Expr::Not(Box::new(self.factor()?))
        } else if self.tokens.next_if(|(_, token)| *token == Token::Open).is_some() {
            let inner = self.predicate()?;
            self.expect(&Token::Close, "`)`")?;
            inner
        } else {
            self.test()?
        };
        self.depth -= 1;
        Ok(expr)
    }

    fn test(&mut self) -> Result<Expr, SyntaxError> {
        let at = self.place();
        let column = match self.tokens.next() {
            Some((_, Token::Quoted(name))) => name,
            Some((_, Token::Name(name)))
                if !["and", "or", "not", "in", "is", "null"].iter().any(|word| name.eq_ignore_ascii_case(word)) =>
            {
                name
            }
            _ => return Err(SyntaxError(at, "expected a column, `not` or `(`".into())),
        };
        if let Some((_, Token::Compare(compare))) = self.tokens.next_if(|(_, token)| matches!(token, Token::Compare(_)))
        {
            return Ok(Expr::Compare(column, compare, self.literal()?));
        }
        if self.take("is") {
            let not = self.take("not");
            let at = self.place();
            if !self.take("null") {
                return Err(SyntaxError(at, "expected `null`".into()));
            }
            return Ok(negated(Expr::IsNull(column), not));
        }
        let not = self.take("not");
        let at = self.place();
        if !self.take("in") {
            let expected = if not { "`in`" } else { "=, !=, <, <=, >, >=, `in`, `not in` or `is` after the column" };
            return Err(SyntaxError(at, format!("expected {expected}")));
        }
        self.expect(&Token::Open, "`(`")?;
        let mut literals = vec![self.literal()?];
        while self.tokens.next_if(|(_, token)| *token == Token::Comma).is_some() {
            literals.push(self.literal()?);
        }
        self.expect(&Token::Close, "`,` or `)`")?;
        Ok(negated(Expr::In(column, literals), not))
    }

    fn literal(&mut self) -> Result<Literal, SyntaxError> {
        let at = self.place();
        match self.tokens.next() {
            Some((_, Token::Literal(literal))) => Ok(literal),
            Some((_, Token::Name(word))) => {
                Err(SyntaxError(at, format!("expected a number or a text in quotes; write '{word}' if it is a text")))
            }
            _ => Err(SyntaxError(at, "expected a number or a text in quotes".into())),
        }
    }

    fn expect(&mut self, token: &Token, name: &str) -> Result<(), SyntaxError> {
        let at = self.place();
        match self.tokens.next() {
            Some((_, found)) if found == *token => Ok(()),
            _ => Err(SyntaxError(at, format!("expected {name}"))),
        }
    }

    fn take(&mut self, word: &str) -> bool {
        self.tokens.next_if(|(_, token)| token.is_word(word)).is_some()
    }

    fn place(&mut self) -> usize {
        self.tokens.peek().map_or(self.end, |(at, _)| *at)
    }
}

fn negated(expr: Expr, not: bool) -> Expr {
    if not { Expr::Not(Box::new(expr)) } else { expr }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_predicate_is_pointed_at() {
        for (text, place, what) in [
            ("()", 1, "expected a column"),
            ("day", 3, "expected =, !="),
            ("day >= ", 7, "expected a number or a text in quotes"),
            ("day > and hour", 6, "write 'and'"),
            ("day = 2026-11-20", 6, "'2026-11-20'"),
            ("day = 0x10", 6, "'0x10'"),
            ("day = '2026", 6, "never closed"),
            ("`day", 0, "never closed"),
            ("day == 1", 4, "one `=`"),
            ("day <> 1", 4, "`!=`"),
            ("!day", 0, "`not`"),
            ("day = 1 hour = 2", 8, "expected `and`"),
            ("(day = 1", 8, "expected `)`"),
            ("day in 1", 7, "expected `(`"),
            ("day in ()", 8, "expected a number"),
            ("day in (1 2)", 10, "expected `,` or `)`"),
            ("day not 1", 8, "expected `in`"),
            ("day is 1", 7, "expected `null`"),
            ("6 > hour", 0, "expected a column"),
            ("and = 1", 0, "expected a column"),
            ("ü = 'é' ; x", 8, "`;`"),
        ] {
            let said = parse(text).unwrap_err().to_string();
            let column = said.lines().nth(2).unwrap().len() - 3;
            assert!(said.contains(what) && column == place, "{text}: {said}");
        }
        let deep = format!("{}day = 1{}", "(".repeat(60), ")".repeat(60));
        assert!(parse(&deep).unwrap_err().to_string().contains("more than 50"));
        assert!(parse(&format!("day = 1{}", " or day = 2".repeat(10_000))).is_ok());
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[a-c ()'\"`<>=!,.0-9é\\-]{0,40}|(day|=|<|'x'|1|in|not|\\(|\\)|,|or|and| ){0,20}") {
            if let Err(fault) = parse(&text) {
                prop_assert!(fault.to_string().contains("cannot read the predicate"));
            }
        }
    }
}
