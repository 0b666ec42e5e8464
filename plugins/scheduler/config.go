package scheduler

import (
	"bytes"

	"github.com/vmihailenco/msgpack/v5"

	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// Type is what a key of a configuration holds.
type Type string

// The types. The set is closed.
const (
	Text   Type = "text"
	Int    Type = "int"
	Number Type = "number"
	Bool   Type = "bool"
	Texts  Type = "texts" // a list
)

// Field is one key of a plugin's configuration.
type Field struct {
	Key      string // a-z, 0-9 and '_'
	Type     Type
	Doc      string // meaning and unit
	Required bool   // has no default
	Default  any    // string, int64, float64, bool or []string, by Type; nil: the zero value
	Min, Max *float64
	OneOf    []string // a text's closed set
}

// Bound gives a bound for Field's Min and Max.
func Bound(x float64) *float64 { return &x }

// Config is a configuration that keeps the schema.
type Config struct {
	Seed uint64 // of the run: draw from it, so that a run can be repeated
	raw  []byte
}

// Decode fills a struct whose fields have tags as `msgpack:"key"`. Every key of
// the schema is there, and a key without a field is an error.
func (c Config) Decode(into any) error {
	if len(c.raw) == 0 {
		return nil
	}
	d := msgpack.NewDecoder(bytes.NewReader(c.raw))
	d.DisallowUnknownFields(true)
	if err := d.Decode(into); err != nil {
		return Errorf(runner.Invalid, "decode configuration: %v", err)
	}
	return nil
}

// NewConfig is a configuration of encoded keys; for tests of plugins.
func NewConfig(seed uint64, values map[string]any) (Config, error) {
	raw, err := msgpack.Marshal(values)
	if err != nil {
		return Config{}, Errorf(runner.Invalid, "encode configuration: %v", err)
	}
	return Config{Seed: seed, raw: raw}, nil
}

var types = map[Type]schedulerv1.Type{Text: schedulerv1.Type_TYPE_TEXT, Int: schedulerv1.Type_TYPE_INT, Number: schedulerv1.Type_TYPE_NUMBER,
	Bool: schedulerv1.Type_TYPE_BOOL, Texts: schedulerv1.Type_TYPE_TEXTS}

// proto gives a field as it travels.
func (f Field) proto() (*schedulerv1.Field, error) {
	out := &schedulerv1.Field{Key: f.Key, Type: types[f.Type], Doc: f.Doc, Required: f.Required, Min: f.Min, Max: f.Max, OneOf: f.OneOf}
	if out.Type == schedulerv1.Type_TYPE_UNSPECIFIED {
		return nil, Errorf(runner.Internal, "schema key %s: unknown type %q", f.Key, f.Type)
	}
	if f.Required {
		return out, nil
	}
	value, ok := f.value()
	if !ok {
		return nil, Errorf(runner.Internal, "schema key %s: default %v (%T) is no %s", f.Key, f.Default, f.Default, f.Type)
	}
	out.Default = value
	return out, nil
}

// value gives the default as it travels; ok is false where it is of another type.
func (f Field) value() (*schedulerv1.Value, bool) {
	ok := f.Default == nil
	v := &schedulerv1.Value{}
	switch f.Type {
	case Text:
		x, is := f.Default.(string)
		v.Value, ok = &schedulerv1.Value_Text{Text: x}, ok || is
	case Int:
		x, is := f.Default.(int64)
		if n, plain := f.Default.(int); plain {
			x, is = int64(n), true
		}
		v.Value, ok = &schedulerv1.Value_Int{Int: x}, ok || is
	case Number:
		x, is := f.Default.(float64)
		v.Value, ok = &schedulerv1.Value_Number{Number: x}, ok || is
	case Bool:
		x, is := f.Default.(bool)
		v.Value, ok = &schedulerv1.Value_Flag{Flag: x}, ok || is
	case Texts:
		x, is := f.Default.([]string)
		v.Value, ok = &schedulerv1.Value_Texts{Texts: &schedulerv1.Texts{Texts: x}}, ok || is
	}
	return v, ok
}
