//! Type 16: `ConsumerGroupRegularExpressionKey.json` and `ConsumerGroupRegularExpressionValue.json`.

use crate::Str;

messages! {
    key ConsumerGroupRegularExpressionKey: ConsumerGroupRegularExpression {
        group_id:           Str [0];
        regular_expression: Str [0];
    }
    value ConsumerGroupRegularExpressionValue: ConsumerGroupRegularExpression, versions [0], flexible [0+] {
        topics:    Vec<Str> [0+];
        version:   i64      [0+];
        timestamp: i64      [0+];
    }
}
