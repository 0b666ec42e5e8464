package config

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// maxFileBytes bounds what is parsed: a configuration is a page or two.
const maxFileBytes = 256 << 10

// maxDepth bounds nesting before the parser, which recurses, sees it.
const maxDepth = 64

// parse turns a file's bytes into the syntax tree of its one mapping.
func parse(file string, text []byte) (root ast.Node, problem *Problem) {
	if p := prescan(file, text); p != nil {
		return nil, p
	}
	defer func() { // the parser is foreign code, and its input the user's
		if r := recover(); r != nil {
			root, problem = nil, &Problem{Place: Place{File: file}, Message: fmt.Sprintf("want YAML, got text that the parser cannot read: %v", r)}
		}
	}()
	tree, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, syntaxProblem(file, err)
	}
	if len(tree.Docs) > 1 {
		p := placeOf(file, tree.Docs[1].Body)
		return nil, &Problem{Place: p, Message: fmt.Sprintf("want one document, got %d", len(tree.Docs)), Hint: "remove the line with ---"}
	}
	if len(tree.Docs) == 0 || tree.Docs[0].Body == nil || tree.Docs[0].Body.Type() == ast.NullType || tree.Docs[0].Body.Type() == ast.CommentType {
		return nil, &Problem{Place: Place{File: file}, Message: "want a configuration, got an empty file", Hint: "`dflash-runner config show` prints a complete one"}
	}
	return tree.Docs[0].Body, nil
}

// prescan refuses what the parser reports badly or not at all.
func prescan(file string, text []byte) *Problem {
	if len(text) > maxFileBytes {
		return &Problem{Place: Place{File: file}, Message: fmt.Sprintf("want at most %d bytes, got %d", maxFileBytes, len(text))}
	}
	for i, line := range bytes.Split(text, []byte("\n")) {
		if !utf8.Valid(line) {
			return &Problem{Place: Place{file, i + 1, 1}, Message: "want UTF-8, got a line that is not", Hint: "save the file as UTF-8"}
		}
		indent := len(line) - len(bytes.TrimLeft(line, " \t"))
		if tab := bytes.IndexByte(line[:indent], '\t'); tab >= 0 && len(bytes.TrimSpace(line)) > 0 {
			return &Problem{Place: Place{file, i + 1, tab + 1}, Message: "want spaces for indentation, got a tab", Hint: "YAML forbids tabs there: use two spaces"}
		}
		if indent/2 > maxDepth || bytes.Count(line, []byte("["))+bytes.Count(line, []byte("{"))+bytes.Count(line, []byte("- ")) > maxDepth {
			return &Problem{Place: Place{file, i + 1, 1}, Message: fmt.Sprintf("want nesting of at most %d, got more", maxDepth)}
		}
	}
	if n := bytes.Count(text, []byte("[")) + bytes.Count(text, []byte("{")); n > 4*maxDepth {
		return &Problem{Place: Place{File: file}, Message: fmt.Sprintf("want at most %d opening brackets, got %d", 4*maxDepth, n)}
	}
	return nil
}

// syntaxProblem keeps the parser's message and place, on one line.
func syntaxProblem(file string, err error) *Problem {
	p := &Problem{Place: Place{File: file}, Message: "want YAML: " + strings.SplitN(err.Error(), "\n", 2)[0]}
	var e yaml.Error
	if errors.As(err, &e) {
		p.Message = "want YAML: " + strings.SplitN(e.GetMessage(), "\n", 2)[0]
		if t := e.GetToken(); t != nil && t.Position != nil {
			p.Line, p.Column = t.Position.Line, t.Position.Column
		}
	}
	if strings.Contains(p.Message, "already defined") {
		p.Hint = "keep one of the two"
	}
	return p
}

// placeOf gives where a node begins. A mapping begins at its first key, not at
// the first colon, which is its token.
func placeOf(file string, n ast.Node) Place {
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 && !m.IsFlowStyle {
		n = m.Values[0]
	}
	if v, ok := n.(*ast.MappingValueNode); ok {
		n = v.Key
	}
	if n == nil || n.GetToken() == nil || n.GetToken().Position == nil {
		return Place{File: file}
	}
	at := n.GetToken().Position
	return Place{File: file, Line: at.Line, Column: at.Column}
}
