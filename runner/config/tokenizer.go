package config

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/dflash-runner/dflash-runner/runner"
)

// tokenizerFiles are those that transformers loads a tokenizer from.
var tokenizerFiles = [...]string{"tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json"}

// HasTokenizer reports whether a model's directory has a tokenizer.
func HasTokenizer(directory string) bool {
	for _, f := range tokenizerFiles {
		if s, err := os.Stat(filepath.Join(directory, f)); err == nil && s.Mode().IsRegular() {
			return true
		}
	}
	return false
}

// MaskToken finds the id of a tokenizer's own mask token: ok is false where it
// names none, or names one that its vocabulary does not have.
func MaskToken(directory string) (id int, ok bool, err error) {
	name, err := maskName(directory)
	if err != nil || name == "" {
		return 0, false, err
	}
	var t struct {
		Added []struct {
			ID      int    `json:"id"`
			Content string `json:"content"`
		} `json:"added_tokens"`
		Model struct {
			Vocab json.RawMessage `json:"vocab"`
		} `json:"model"`
	}
	if err := readJSON(filepath.Join(directory, "tokenizer.json"), &t); err != nil {
		return 0, false, err
	}
	for _, a := range t.Added {
		if a.Content == name {
			return a.ID, true, nil
		}
	}
	var vocab map[string]int // a unigram model has a list here, and its mask token above
	if json.Unmarshal(t.Model.Vocab, &vocab) == nil {
		id, ok = vocab[name]
	}
	return id, ok, nil
}

// maskName reads the mask token's text: a string, or an object with content.
func maskName(directory string) (string, error) {
	for _, file := range []string{"tokenizer_config.json", "special_tokens_map.json"} {
		var t struct {
			Mask json.RawMessage `json:"mask_token"`
		}
		if err := readJSON(filepath.Join(directory, file), &t); err != nil {
			if runner.KindOf(err) == runner.NotFound {
				continue
			}
			return "", err
		}
		var text string
		var object struct {
			Content string `json:"content"`
		}
		if json.Unmarshal(t.Mask, &text) == nil && text != "" {
			return text, nil
		}
		if json.Unmarshal(t.Mask, &object) == nil && object.Content != "" {
			return object.Content, nil
		}
	}
	return "", nil
}

// readJSON decodes a file.
func readJSON(file string, into any) error {
	text, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return runner.Errorf(runner.NotFound, "read tokenizer: no %s", file)
	}
	if err != nil {
		return runner.Errorf(runner.Invalid, "read tokenizer: %w", err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return runner.Errorf(runner.Invalid, "read tokenizer %s: want JSON: %w", file, err)
	}
	return nil
}
