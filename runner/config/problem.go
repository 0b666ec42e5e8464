package config

import (
	"fmt"
	"sort"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Place is where something was written. Line and Column count from 1; both are
// 0 where the whole file, a default or a --set flag is meant.
type Place struct {
	File         string
	Line, Column int
}

// String gives "file:line:column", or the file alone.
func (p Place) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	Place
	Path    string // "training.anchors"; empty for the file as a whole
	Message string // want ..., got ...
	Hint    string // what to do, or empty
}

// String gives "file:line:column: path: message".
func (p Problem) String() string {
	parts := make([]string, 0, 3)
	for _, s := range []string{p.Place.String(), p.Path, p.Message} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ": ")
}

// Problems is every problem of one configuration, in the file's order.
type Problems []Problem

// Error gives one problem a line, each with its hint.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
		if p.Hint != "" {
			lines[i] += " (" + p.Hint + ")"
		}
	}
	return strings.Join(lines, "\n")
}

// Err gives problems that later checks found as one error; nil for none.
func (ps Problems) Err() error { return ps.err() }

// err gives the problems as one error of kind invalid, sorted; nil for none.
func (ps Problems) err() error {
	if len(ps) == 0 {
		return nil
	}
	sort.SliceStable(ps, func(i, j int) bool {
		a, b := ps[i].Place, ps[j].Place
		if a.File != b.File {
			return a.File < b.File
		}
		if a.Line != b.Line {
			return a.Line < b.Line
		}
		return a.Column < b.Column
	})
	return &runner.Error{Kind: runner.Invalid, Msg: ps.Error(), Err: ps}
}

// places remembers where each path was written.
type places map[string]Place

// of finds the place of a path, or of the nearest thing around it.
func (at places) of(path string) Place {
	for {
		if p, ok := at[path]; ok {
			return p
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			return at[""]
		}
		path = path[:cut]
	}
}

// suggest finds the known key nearest to a mistyped one, "" when none is near.
func suggest(got string, known []string) string {
	best, bestAt := "", 3
	if len(got) <= 3 {
		bestAt = 2
	}
	for _, k := range known {
		if d := distance(strings.ToLower(got), k); d < bestAt {
			best, bestAt = k, d
		}
	}
	if best != "" {
		return best
	}
	for _, k := range known { // a part of the right name is near as well
		if g := strings.ToLower(got); len(g) >= 4 && (strings.Contains(k, g) || strings.Contains(g, k) && len(k) >= 4) {
			return k
		}
	}
	return ""
}

// distance is Levenshtein's, bounded by its inputs' first 64 bytes.
func distance(a, b string) int {
	a, b = a[:min(len(a), 64)], b[:min(len(b), 64)]
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = min(diagonal, row[j], row[j+1]) + 1
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
