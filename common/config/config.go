// Package config reads the configuration files of both binaries: YAML, strict, with every mistake
// reported at once by file, line and field.
//
// It owns the reading and the reporting; the fields and their rules belong to the package that
// declares the struct. It refuses unknown fields, fields given twice, values of the wrong type, and
// more than one document. Its values are plain and not shared.
package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	yaml "sigs.k8s.io/yaml/goyaml.v3"
)

// Version is the apiVersion of every configuration file.
const Version = "config.skerry.io/v1alpha1"

// MaxSize bounds a configuration file, in bytes. A larger file is no configuration.
const MaxSize = 1 << 20

// TypeMeta is the head of every configuration file.
type TypeMeta struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// Error is every mistake in a file.
type Error struct {
	File     string
	Problems []Problem
}

func (e *Error) Error() string {
	lines := make([]string, 0, len(e.Problems))
	for _, p := range e.Problems {
		var b strings.Builder
		b.WriteString(e.File)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d", p.Line)
		}
		if p.Path != "" {
			b.WriteString(": " + p.Path)
		}
		lines = append(lines, b.String()+": "+p.Message)
	}
	return strings.Join(lines, "\n")
}

// Document is a file that has been read.
type Document struct {
	file  string
	lines map[string]int // field path -> line
}

// Decode reads a file's content into a struct that already holds the defaults. kind is the Kind
// that the file must have. The error is an *Error.
func Decode(file string, data []byte, kind string, into any) (*Document, error) {
	d := &Document{file: file, lines: map[string]int{}}
	if len(data) > MaxSize {
		return nil, d.fail(Problem{Message: fmt.Sprintf("%d bytes; a configuration has at most %d", len(data), MaxSize)})
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var root yaml.Node
	if err := decoder.Decode(&root); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, d.fail(Problem{Message: "the file is empty; `config minimal` prints one to start from"})
		}
		return nil, d.fail(syntax(err))
	}
	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, d.fail(Problem{Message: "more than one YAML document; put one configuration in a file"})
	}
	w := walker{lines: d.lines}
	value := w.walk(root.Content[0], reflect.TypeOf(into).Elem(), "")
	if len(w.problems) > 0 {
		return d, d.fail(w.problems...)
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return d, d.fail(Problem{Message: err.Error()})
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return d, d.fail(Problem{Message: err.Error()})
	}
	var head TypeMeta
	if err := json.Unmarshal(raw, &head); err != nil {
		return d, d.fail(Problem{Message: err.Error()})
	}
	var wrong field.ErrorList
	if head.APIVersion != Version {
		wrong = append(wrong, field.NotSupported(field.NewPath("apiVersion"), head.APIVersion, []string{Version}))
	}
	if head.Kind != kind {
		wrong = append(wrong, field.NotSupported(field.NewPath("kind"), head.Kind, []string{kind}))
	}
	return d, d.Errors(wrong)
}

// Errors gives the places of validation errors; nil for an empty list.
func (d *Document) Errors(list field.ErrorList) error {
	problems := make([]Problem, 0, len(list))
	for _, e := range list {
		problems = append(problems, Problem{Line: d.Line(e.Field), Path: e.Field, Message: e.ErrorBody()})
	}
	return d.fail(problems...)
}

// Line is where a field stands, or where the nearest field around it does; 0 without one.
func (d *Document) Line(path string) int {
	for path != "" {
		if line, ok := d.lines[path]; ok {
			return line
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			break
		}
		path = path[:cut]
	}
	return 0
}

func (d *Document) fail(problems ...Problem) error {
	if len(problems) == 0 {
		return nil
	}
	slices.SortStableFunc(problems, func(a, b Problem) int { return a.Line - b.Line })
	return &Error{File: d.file, Problems: problems}
}

// syntax takes the line out of the parser's message ("yaml: line 3: did not find ...").
func syntax(err error) Problem {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	if rest, ok := strings.CutPrefix(message, "line "); ok {
		if number, text, ok := strings.Cut(rest, ": "); ok {
			if line, err := strconv.Atoi(number); err == nil {
				return Problem{Line: line, Message: text}
			}
		}
	}
	return Problem{Message: message}
}
