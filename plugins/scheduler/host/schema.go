package host

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vmihailenco/msgpack/v5"

	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// maxFields bounds a schema.
const maxFields = 256

// ConfigError is a configuration that its plugin's schema refuses. Key is
// "depth", or "names[2]" for an entry of a list.
type ConfigError struct {
	Key  string
	Msg  string // want ..., got ...
	Hint string
}

// Error gives "key: message".
func (e *ConfigError) Error() string { return e.Key + ": " + e.Msg }

// ConfigErrors are all that a schema refuses of a configuration.
type ConfigErrors []*ConfigError

// Error gives them in one line.
func (es ConfigErrors) Error() string {
	said := make([]string, len(es))
	for i, e := range es {
		said[i] = e.Error()
	}
	return strings.Join(said, "; ")
}

// checkSchema refuses a schema that makes no sense.
func checkSchema(fields []*schedulerv1.Field) error {
	if len(fields) > maxFields {
		return runner.Errorf(runner.Invalid, "config schema: want at most %d keys, got %d", maxFields, len(fields))
	}
	seen := map[string]bool{}
	for _, f := range fields {
		key := f.GetKey()
		switch {
		case !keyRule.MatchString(key):
			return runner.Errorf(runner.Invalid, "config schema: key: want a-z, 0-9 and '_', got %.80q", key)
		case seen[key]:
			return runner.Errorf(runner.Invalid, "config schema: key %s: it stands there twice", key)
		case typeNames[f.GetType()] == "":
			return runner.Errorf(runner.Invalid, "config schema: key %s: unknown type %d", key, f.GetType())
		}
		seen[key] = true
		if f.GetRequired() {
			continue
		}
		if wrong := judgeValue(f, plain(f.GetDefault())); len(wrong) > 0 {
			return runner.Errorf(runner.Invalid, "config schema: default of %w", wrong)
		}
	}
	return nil
}

var typeNames = map[schedulerv1.Type]string{schedulerv1.Type_TYPE_TEXT: "a text", schedulerv1.Type_TYPE_INT: "a whole number", schedulerv1.Type_TYPE_NUMBER: "a number",
	schedulerv1.Type_TYPE_BOOL: "true or false", schedulerv1.Type_TYPE_TEXTS: "a list of texts"}

// plain is a value in Go's words.
func plain(v *schedulerv1.Value) any {
	switch x := v.GetValue().(type) {
	case *schedulerv1.Value_Text:
		return x.Text
	case *schedulerv1.Value_Int:
		return x.Int
	case *schedulerv1.Value_Number:
		return x.Number
	case *schedulerv1.Value_Flag:
		return x.Flag
	case *schedulerv1.Value_Texts:
		out := []any{}
		for _, t := range x.Texts.GetTexts() {
			out = append(out, t)
		}
		return out
	}
	return nil
}

// encode checks a configuration against the schema, fills in defaults, and gives
// it as msgpack with its keys sorted. All that is wrong is told at once.
func encode(fields []*schedulerv1.Field, values map[string]any) ([]byte, error) {
	known := map[string]*schedulerv1.Field{}
	for _, f := range fields {
		known[f.GetKey()] = f
	}
	var wrong ConfigErrors
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if known[key] == nil {
			wrong = append(wrong, &ConfigError{Key: key, Msg: "unknown key", Hint: "the plugin's keys: " + strings.Join(slices.Sorted(maps.Keys(known)), ", ")})
		}
	}
	whole := map[string]any{}
	for _, f := range fields {
		v, ok := values[f.GetKey()]
		if !ok && f.GetRequired() {
			wrong = append(wrong, &ConfigError{Key: f.GetKey(), Msg: "want " + typeNames[f.GetType()] + ", got nothing", Hint: f.GetDoc()})
			continue
		}
		if !ok {
			v = plain(f.GetDefault())
		}
		if n, is := v.(int64); is && f.GetType() == schedulerv1.Type_TYPE_NUMBER {
			v = float64(n)
		}
		wrong = append(wrong, judgeValue(f, v)...)
		whole[f.GetKey()] = v
	}
	if len(wrong) > 0 {
		return nil, wrong
	}
	var b strings.Builder
	e := msgpack.NewEncoder(&b)
	e.SetSortMapKeys(true)
	if err := e.Encode(whole); err != nil {
		return nil, runner.Errorf(runner.Internal, "encode plugin configuration: %w", err)
	}
	return []byte(b.String()), nil
}

// judgeValue says what is wrong with a value, or nothing.
func judgeValue(f *schedulerv1.Field, v any) (all ConfigErrors) {
	wrong := func(at, format string, a ...any) {
		all = append(all, &ConfigError{Key: f.GetKey() + at, Msg: fmt.Sprintf(format, a...), Hint: f.GetDoc()})
	}
	ok, x := false, 0.0
	switch t := v.(type) {
	case string:
		ok = f.GetType() == schedulerv1.Type_TYPE_TEXT
		if ok && len(f.GetOneOf()) > 0 && !slices.Contains(f.GetOneOf(), t) {
			wrong("", "want %s, got %.80q", strings.Join(f.GetOneOf(), " or "), t)
		}
	case int64:
		ok, x = f.GetType() == schedulerv1.Type_TYPE_INT, float64(t)
	case float64:
		ok, x = f.GetType() == schedulerv1.Type_TYPE_NUMBER, t
	case bool:
		ok = f.GetType() == schedulerv1.Type_TYPE_BOOL
	case []any:
		ok = f.GetType() == schedulerv1.Type_TYPE_TEXTS
		for i, e := range t {
			if _, is := e.(string); ok && !is {
				wrong(fmt.Sprintf("[%d]", i), "want a text, got %v", e)
			}
		}
	}
	switch numeric := f.GetType() == schedulerv1.Type_TYPE_INT || f.GetType() == schedulerv1.Type_TYPE_NUMBER; {
	case !ok:
		wrong("", "want %s, got %.80s", typeNames[f.GetType()], fmt.Sprint(v))
	case numeric && f.Min != nil && x < f.GetMin():
		wrong("", "want at least %g, got %g", f.GetMin(), x)
	case numeric && f.Max != nil && x > f.GetMax():
		wrong("", "want at most %g, got %g", f.GetMax(), x)
	}
	return all
}
