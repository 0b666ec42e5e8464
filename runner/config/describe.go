package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// describe says what a node is, in words for a message.
func describe(n ast.Node) string {
	switch t := n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a section"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	case *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return clip(t.GetToken().Value)
	case *ast.StringNode:
		return fmt.Sprintf("the text %q", clip(t.Value))
	default:
		return fmt.Sprintf("%q", clip(n.String()))
	}
}

// wanted says what a field takes.
func wanted(f reflect.StructField) string {
	switch t := f.Type; {
	case t == reflect.TypeFor[Duration]() || t == reflect.TypeFor[Size]() || t == reflect.TypeFor[Count]():
		return unitWanted(t)
	case t.Kind() == reflect.Struct, t.Kind() == reflect.Map:
		return "a section with keys"
	case t.Kind() == reflect.Slice:
		return "a list"
	case t.Kind() == reflect.String:
		return oneOf(f.Tag.Get("enum"))
	case t.Kind() == reflect.Float64:
		return "a number"
	default:
		return "a whole number"
	}
}

// unitWanted says how a value with a unit is written.
func unitWanted(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[Size]():
		return "a size with its unit such as 2GiB"
	case reflect.TypeFor[Count]():
		return "a whole number, or auto"
	}
	return "a duration with its unit such as 30s"
}

// oneOf spells a closed set: "a, b or c".
func oneOf(enum string) string {
	words := strings.Split(enum, "|")
	switch len(words) {
	case 1:
		if words[0] == "" {
			return "text"
		}
		return words[0]
	default:
		return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
	}
}

// number prints a bound without an exponent where it is whole.
func number(x float64) string {
	if x == float64(int64(x)) {
		return strconv.FormatInt(int64(x), 10)
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}
