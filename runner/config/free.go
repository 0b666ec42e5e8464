package config

import (
	"math"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// free decodes a mapping whose keys somebody else knows: texts, whole numbers,
// numbers, true or false, and lists of them. Each key's place is kept, so that
// who knows them can name it.
func (d *decoder) free(n ast.Node, v reflect.Value, path string) {
	pairs, ok := d.pairs(n, path)
	if !ok {
		return
	}
	out := map[string]any{}
	for _, pair := range pairs {
		at := join(path, keyText(pair.Key))
		if pair.Value == nil || pair.Value.Type() == ast.NullType {
			d.add(pair.Key, at, "give it a value, or remove the line", "want a value, got nothing")
			continue
		}
		out[keyText(pair.Key)] = d.plain(pair.Value, at, true)
		d.at[at] = valuePlace(d.file, pair)
	}
	v.Set(reflect.ValueOf(out))
}

// plain gives a value in Go's own types: string, int64, float64, bool, []any.
func (d *decoder) plain(n ast.Node, path string, lists bool) any {
	switch t := n.(type) {
	case *ast.StringNode:
		if !strings.ContainsRune(t.Value, 0) {
			return t.Value
		}
	case *ast.LiteralNode:
		return t.Value.Value
	case *ast.BoolNode:
		return t.Value
	case *ast.FloatNode:
		if !math.IsInf(t.Value, 0) && !math.IsNaN(t.Value) {
			return t.Value
		}
	case *ast.IntegerNode:
		switch x := t.Value.(type) {
		case int64:
			return x
		case uint64:
			if x <= math.MaxInt64 {
				return int64(x)
			}
		}
	case *ast.SequenceNode:
		if out := make([]any, 0, len(t.Values)); lists {
			for _, e := range t.Values {
				out = append(out, d.plain(e, path, false))
			}
			return out
		}
	}
	d.add(n, path, "", "want a text, a number, true, false or a list of them, got %s", describe(n))
	return nil
}
