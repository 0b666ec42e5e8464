package config

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// scalar decodes a string, number or boolean and checks its bounds.
func (d *decoder) scalar(n ast.Node, v reflect.Value, path string, field reflect.StructTag) {
	switch v.Kind() {
	case reflect.String:
		d.text(n, v, path, field)
	case reflect.Int:
		d.integer(n, v, path, field)
	case reflect.Uint64:
		if i, ok := n.(*ast.IntegerNode); ok {
			if u, ok := i.Value.(uint64); ok {
				v.SetUint(u)
				return
			}
		}
		d.add(n, path, "", "want a whole number from 0, got %s", describe(n))
	case reflect.Float64:
		d.float(n, v, path, field)
	default:
		panic("config: no decoding for " + v.Type().String())
	}
}

// text decodes a string, or one word of a closed set.
func (d *decoder) text(n ast.Node, v reflect.Value, path string, field reflect.StructTag) {
	enum := field.Get("enum")
	var s string
	switch t := n.(type) {
	case *ast.StringNode:
		s = t.Value
	case *ast.LiteralNode:
		s = t.Value.Value
	case *ast.BoolNode, *ast.IntegerNode:
		if enum == "" && !strings.Contains(path, "[") { // 0 and true are names in a list of devices, not elsewhere
			d.add(n, path, fmt.Sprintf("quote it: %q", n.String()), "want text, got %s", describe(n))
			return
		}
		s = n.GetToken().Value
	default:
		d.add(n, path, "", "want %s, got %s", oneOf(enum), describe(n))
		return
	}
	if strings.ContainsRune(s, 0) {
		d.add(n, path, "", "want text, got a zero byte in it")
		return
	}
	if words := strings.Split(enum, "|"); enum != "" && !contains(words, s) {
		hint := ""
		if near := suggest(s, words); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		d.add(n, path, hint, "want %s, got %q", oneOf(enum), clip(s))
		return
	}
	v.SetString(s)
}

// integer decodes a whole number within its bounds.
func (d *decoder) integer(n ast.Node, v reflect.Value, path string, field reflect.StructTag) {
	i, ok := n.(*ast.IntegerNode)
	if !ok {
		d.add(n, path, "", "want a whole number, got %s", describe(n))
		return
	}
	lo, hi := bounds(field)
	switch x := i.Value.(type) {
	case int64:
		v.SetInt(x)
		d.bounded(n, float64(x), lo, hi, path)
	case uint64:
		if x > math.MaxInt64 {
			d.add(n, path, "", "want at most %s, got %d", number(hi), x)
			return
		}
		v.SetInt(int64(x))
		d.bounded(n, float64(x), lo, hi, path)
	default:
		d.add(n, path, "", "want a whole number, got %s", describe(n))
	}
}

// float decodes a finite number within its bounds.
func (d *decoder) float(n ast.Node, v reflect.Value, path string, field reflect.StructTag) {
	x, err := strconv.ParseFloat(strings.ReplaceAll(n.GetToken().Value, "_", ""), 64)
	switch n.(type) {
	case *ast.FloatNode, *ast.IntegerNode, *ast.StringNode: // 1e-8 without a dot is a string in YAML 1.1
	default:
		err = strconv.ErrSyntax
	}
	if err != nil || math.IsInf(x, 0) || math.IsNaN(x) {
		d.add(n, path, "", "want a number, got %s", describe(n))
		return
	}
	v.SetFloat(x)
	lo, hi := bounds(field)
	d.bounded(n, x, lo, hi, path)
}

// united decodes a value with a unit.
func (d *decoder) united(n ast.Node, v reflect.Value, u encoding.TextUnmarshaler, path string, field reflect.StructTag) {
	switch n.(type) {
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode:
	default:
		d.add(n, path, "", "want %s, got %s", unitWanted(v.Type()), describe(n))
		return
	}
	if err := u.UnmarshalText([]byte(n.GetToken().Value)); err != nil {
		d.add(n, path, "", "%s", err)
		return
	}
	if least := field.Get("min"); least != "" {
		low := reflect.New(v.Type())
		if err := low.Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(least)); err != nil {
			panic("config: bad min tag: " + err.Error())
		}
		if v.Convert(reflect.TypeFor[int64]()).Int() < low.Elem().Convert(reflect.TypeFor[int64]()).Int() {
			d.add(n, path, "", "want at least %s, got %s", least, n.GetToken().Value)
		}
	}
}

// bounded records a number out of its bounds.
func (d *decoder) bounded(n ast.Node, x, lo, hi float64, path string) {
	switch {
	case x < lo:
		d.add(n, path, described(path), "want at least %s, got %s", number(lo), n.GetToken().Value)
	case x > hi:
		d.add(n, path, described(path), "want at most %s, got %s", number(hi), n.GetToken().Value)
	}
}

// bounds reads the min and max tags.
func bounds(field reflect.StructTag) (lo, hi float64) {
	lo, hi = math.Inf(-1), math.Inf(1)
	if s := field.Get("min"); s != "" {
		lo = mustFloat(s)
	}
	if s := field.Get("max"); s != "" {
		hi = mustFloat(s)
	}
	return lo, hi
}

func mustFloat(s string) float64 {
	x, err := strconv.ParseFloat(s, 64)
	if err != nil {
		panic("config: bad bound " + s)
	}
	return x
}

func contains(words []string, s string) bool {
	for _, w := range words {
		if w == s {
			return true
		}
	}
	return false
}
