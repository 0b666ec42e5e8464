package worker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
)

// Bounds of one parsed log line.
const (
	messageWidth = 4096
	fieldWidth   = 1024
	fieldCount   = 32
)

// hostKeys are set by the host; a worker's own values for them are left out.
var hostKeys = []string{"worker", "role", "rank", "generation"}

// logLine is one line of stderr, understood as far as it can be.
type logLine struct {
	Level     hclog.Level
	Message   string
	Fields    []any // key, value, ...: sorted by key
	Traceback []string
	Parsed    bool // it was a JSON object
}

// text gives the line for people, without its traceback.
func (l logLine) text() string {
	if !l.Parsed {
		return l.Message
	}
	var out strings.Builder
	fmt.Fprintf(&out, "[%s] %s", strings.ToUpper(l.Level.String()), l.Message)
	for i := 0; i+1 < len(l.Fields); i += 2 {
		fmt.Fprintf(&out, " %v=%v", l.Fields[i], l.Fields[i+1])
	}
	return out.String()
}

// parseLine reads a line as an hclog JSON object, or as plain text. Every line
// gives a result: a value of a wrong type (which go-plugin's own parser panics
// on) is shown as its JSON text.
func parseLine(line []byte) logLine {
	trimmed := bytes.TrimSpace(line)
	var object map[string]any
	if len(trimmed) == 0 || trimmed[0] != '{' || json.Unmarshal(trimmed, &object) != nil {
		return plainLine(string(line))
	}
	out := logLine{
		Parsed:    true,
		Level:     hclog.LevelFromString(textOf(object["@level"], 16)),
		Message:   textOf(object["@message"], messageWidth),
		Traceback: linesOf(object["traceback"]),
	}
	if out.Level == hclog.NoLevel {
		out.Level = hclog.Info
	}
	for _, k := range []string{"@level", "@message", "@timestamp", "@module", "@caller"} {
		delete(object, k)
	}
	if len(out.Traceback) > 0 {
		delete(object, "traceback")
	}
	keys := make([]string, 0, len(object))
	for k := range object {
		if !slices.Contains(hostKeys, k) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for i, k := range keys {
		if i == fieldCount {
			out.Fields = append(out.Fields, "fields_left_out", len(keys)-fieldCount)
			break
		}
		out.Fields = append(out.Fields, clean(k, 64), valueOf(object[k]))
	}
	return out
}

// plainLine knows the [LEVEL] prefix; all else is debug.
func plainLine(line string) logLine {
	out := logLine{Level: hclog.Debug, Message: clean(line, messageWidth)}
	for _, l := range []hclog.Level{hclog.Trace, hclog.Debug, hclog.Info, hclog.Warn, hclog.Error} {
		if rest, ok := strings.CutPrefix(out.Message, "["+strings.ToUpper(l.String())+"]"); ok {
			out.Level, out.Message = l, strings.TrimSpace(rest)
			break
		}
	}
	return out
}

// textOf gives a string as it is and anything else as JSON; nothing for nil.
func textOf(v any, limit int) string {
	if v == nil {
		return ""
	}
	if s, ok := v.(string); ok {
		return clean(s, limit)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return "unprintable value"
	}
	return clean(string(b), limit)
}

func valueOf(v any) any {
	switch v := v.(type) {
	case nil, bool, float64:
		return v
	default:
		return textOf(v, fieldWidth)
	}
}

// linesOf reads a traceback: one string of lines, or a list of strings.
func linesOf(v any) (lines []string) {
	switch v := v.(type) {
	case string:
		return strings.Split(strings.TrimRight(v, "\n"), "\n")
	case []any:
		for _, item := range v {
			s, ok := item.(string)
			if !ok {
				return nil
			}
			lines = append(lines, strings.Split(strings.TrimRight(s, "\n"), "\n")...)
		}
	}
	return lines
}
