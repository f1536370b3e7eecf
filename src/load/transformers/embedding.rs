//! What stands before the blocks: rows of the table of words, positions, token types.

use serde_json::json;

use super::blocks::{Blocks, Positioned};
use super::config::Config;
use super::net::{Bias, Features, Net, limit};
use super::settings::{Counted, Learnt, Positions, TokenTypes};
use crate::error::Result;
use crate::ir::Absent;

impl Blocks<'_> {
    /// Embeddings of the caller's tokens. `shown`: its mask. Error: positions that the configuration does not
    /// have.
    pub(super) fn embedded(
        &self,
        config: &Config,
        net: &mut Net,
        shown: Option<&'static str>,
    ) -> Result<Positioned> {
        let positions = self.positions(config, net)?;
        let (settings, names, p) = (self.settings, self.names(), self.prefix);
        let words = format!("{p}{}", names.words);
        let width = settings.embedding.width.unwrap_or(settings.hidden);
        let mut x = net.embedding(&words, "input_ids", [settings.vocabulary, width]);
        if let Some(scale) = settings.embedding.scale {
            x = net.scaled(&format!("{p}scaled"), &x, scale);
        }
        if width != settings.hidden {
            let features = Features { from: width, to: settings.hidden };
            x = net.linear(&format!("{p}project_in"), &x, features, Bias::Without, names.order);
        }
        if let (Some(table), Positions::Learnt(learnt)) = (names.positions, &settings.positions) {
            let ids = self.rows_of_positions(net, learnt, positions.as_deref(), shown);
            let sizes = [learnt.count + learnt.skipped, settings.hidden];
            let placed = net.embedding(&format!("{p}{table}"), &ids, sizes);
            x = net.sum(&format!("{p}embedded"), &x, &placed);
        }
        if let Some(typed) = self.typed(net, &words) {
            x = net.sum(&format!("{p}typed"), &x, &typed);
        }
        let hidden = self.norm(net, p, names.first_norm, &x);
        Ok(Positioned { hidden, positions })
    }

    /// Back to the width of the table of words.
    pub(super) fn narrowed(&self, net: &mut Net, x: &str) -> String {
        match self.settings.embedding.width {
            Some(width) if width != self.settings.hidden => {
                let features = Features { from: self.settings.hidden, to: width };
                let name = format!("{}project_out", self.prefix);
                net.linear(&name, x, features, Bias::Without, self.names().order)
            }
            _ => x.to_owned(),
        }
    }

    /// The caller's positions, where it has any. Bounds the sequence where they are counted.
    fn positions(&self, config: &Config, net: &mut Net) -> Result<Option<String>> {
        let of_rotations = || limit_of_rotations(&self.settings.positions);
        let (ids, places) = match &self.settings.positions {
            Positions::Slopes(_) | Positions::Distances(_) => return Ok(None),
            Positions::Rotary(_) => (of_rotations(), of_rotations()),
            Positions::Learnt(learnt) => {
                let places = match learnt.counted {
                    Counted::Place | Counted::Shown => learnt.count,
                    Counted::Tokens { padding } => learnt.count.saturating_sub(padding as u64 + 1),
                };
                (Some(limit(learnt.field, learnt.count)), Some(limit(learnt.field, places)))
            }
        };
        if let Some(ids) = net.optional("position_ids", Absent::Computed, ids) {
            if self.packs(config, net)? {
                let message = "without a cache, positions that begin anew mean packed sequences, which are not supported";
                return Err(config
                    .refused("use_cache", message)
                    .with_help("give attention_mask beside position_ids"));
            }
            return Ok(Some(ids.to_owned()));
        }
        if let Some(places) = places {
            net.at_most("sequence", places);
        }
        Ok(None)
    }

    /// True where the library takes positions that begin anew for the beginnings of other texts.
    fn packs(&self, config: &Config, net: &Net) -> Result<bool> {
        let decodes = self.settings.layers.iter().any(|layer| layer.sight.looks_back());
        Ok(decodes && !config.flag("use_cache", true)? && !net.takes("attention_mask"))
    }

    /// The row of each token's position in the table.
    fn rows_of_positions(
        &self,
        net: &mut Net,
        learnt: &Learnt,
        positions: Option<&str>,
        shown: Option<&'static str>,
    ) -> String {
        let ids = match (positions, learnt.counted, shown) {
            (Some(ids), ..) => ids.to_owned(),
            (None, Counted::Shown, Some(mask)) => {
                let ids = net.counted(mask);
                let one = net.constant("positions.one", "i64[]", json!(1));
                net.node("positions.before", "sub", &[&ids, &one], json!({}))
            }
            (None, Counted::Tokens { padding }, _) => {
                let padding = net.constant("positions.padding", "i64[]", json!(padding));
                let tokens = net.node("positions.not_padding", "ne", &["input_ids", &padding], json!({}));
                let tokens = net.node("positions.counted", "convert", &[&tokens], json!({"to": "i64"}));
                let ids = net.counted(&tokens);
                net.sum("positions", &ids, &padding)
            }
            (None, Counted::Place | Counted::Shown, _) => {
                net.node("positions", "iota", &[], json!({"type": "i64[sequence]"}))
            }
        };
        if learnt.skipped == 0 {
            return ids;
        }
        let skipped = net.constant("positions.skipped", "i64[]", json!(learnt.skipped));
        net.sum("positions.rows", &ids, &skipped)
    }

    /// What token types add.
    fn typed(&self, net: &mut Net, words: &str) -> Option<String> {
        let (settings, p) = (self.settings, self.prefix);
        match self.names().token_types {
            TokenTypes::None => None,
            TokenTypes::Words => {
                let below = Some(limit("vocab_size", settings.vocabulary));
                let ids = net.optional("token_type_ids", Absent::Computed, below)?;
                Some(net.rows(&format!("{words}.types"), &format!("{words}.weight"), ids))
            }
            TokenTypes::Table(table) => {
                let below = Some(limit("type_vocab_size", settings.token_types));
                let name = format!("{p}{table}");
                let sizes = [settings.token_types, settings.hidden];
                if let Some(ids) = net.optional("token_type_ids", Absent::Filled(0), below) {
                    return Some(net.embedding(&name, ids, sizes));
                }
                let rows = net.param(&format!("{name}.weight"), &sizes, "normal");
                let first = json!({"starts": [0, 0], "sizes": [1, settings.hidden]});
                Some(net.node(&name, "slice", &[&rows], first))
            }
        }
    }
}

/// The fewest positions to which any rotation is bound.
fn limit_of_rotations(positions: &Positions) -> Option<crate::ir::Limit> {
    let Positions::Rotary(rotaries) = positions else { return None };
    let fewest = rotaries.iter().filter_map(|rotary| rotary.longest).min();
    fewest.map(|count| limit("max_position_embeddings", count))
}
