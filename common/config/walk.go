package config

import (
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	yaml "sigs.k8s.io/yaml/goyaml.v3"
)

// Problem is one mistake in a file.
type Problem struct {
	Line    int    // from 1; 0 where the mistake has no place, such as a field that is missing altogether
	Path    string // the field, "modules.edgeHub.servers[0]"
	Message string
}

// walker compares a YAML tree with the Go type it is meant for, notes the place of every field, and
// makes the JSON value. One walk finds every mistake; a decoder would stop at the first, and would
// not have its line.
type walker struct {
	lines    map[string]int
	problems []Problem
	depth    int
}

// maxDepth bounds nesting. No configuration of ours has more than a dozen levels.
const maxDepth = 64

var (
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
	rawMessage      = reflect.TypeFor[json.RawMessage]()
	duration        = reflect.TypeFor[metav1.Duration]()
)

func (w *walker) problem(n *yaml.Node, path, format string, args ...any) {
	w.problems = append(w.problems, Problem{Line: n.Line, Path: path, Message: fmt.Sprintf(format, args...)})
}

// walk converts n to a JSON value. A type of nil accepts anything.
func (w *walker) walk(n *yaml.Node, t reflect.Type, path string) any {
	w.depth++
	defer func() { w.depth-- }()
	if w.depth > maxDepth {
		w.problem(n, path, "nested more than %d levels deep", maxDepth)
		return nil
	}
	if n.Kind == yaml.AliasNode {
		w.problem(n, path, "aliases are not supported: write the value out")
		return nil
	}
	if path != "" {
		if _, ok := w.lines[path]; !ok {
			w.lines[path] = n.Line
		}
	}
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil
	}
	switch {
	case t == nil || t == rawMessage || t.Kind() == reflect.Interface:
		return w.free(n, path)
	case reflect.PointerTo(t).Implements(jsonUnmarshaler) || reflect.PointerTo(t).Implements(textUnmarshaler):
		return w.leaf(n, t, path)
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		if n.Kind != yaml.MappingNode {
			w.problem(n, path, "is %s; want fields", describe(n))
			return nil
		}
		return w.mapping(n, t, path)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			w.problem(n, path, "is %s; want a list", describe(n))
			return nil
		}
		list := make([]any, 0, len(n.Content))
		for i, item := range n.Content {
			list = append(list, w.walk(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i)))
		}
		return list
	}
	return w.leaf(n, t, path)
}

func (w *walker) mapping(n *yaml.Node, t reflect.Type, path string) any {
	out := map[string]any{}
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := key.Value
		if path != "" {
			at = path + "." + key.Value
		}
		if line, ok := first[key.Value]; ok {
			w.problem(key, at, "given twice; first in line %d", line)
			continue
		}
		first[key.Value] = key.Line
		var want reflect.Type
		switch {
		case t == nil:
		case t.Kind() == reflect.Map:
			want = t.Elem()
		default:
			names := map[string]reflect.Type{}
			fieldsOf(t, names)
			var ok bool
			if want, ok = names[key.Value]; !ok {
				w.problem(key, at, "unknown field%s", suggest(key.Value, names))
				continue
			}
		}
		w.lines[at] = key.Line
		out[key.Value] = w.walk(value, want, at)
	}
	return out
}

// free reads a value whose shape another package checks, such as a KubeletConfiguration.
func (w *walker) free(n *yaml.Node, path string) any {
	switch n.Kind {
	case yaml.MappingNode:
		return w.mapping(n, nil, path)
	case yaml.SequenceNode:
		list := make([]any, 0, len(n.Content))
		for i, item := range n.Content {
			list = append(list, w.walk(item, nil, fmt.Sprintf("%s[%d]", path, i)))
		}
		return list
	}
	return w.scalar(n, path)
}

func (w *walker) scalar(n *yaml.Node, path string) any {
	var v any
	if err := n.Decode(&v); err != nil {
		w.problem(n, path, "%v", err)
		return nil
	}
	if f, ok := v.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
		w.problem(n, path, "is not a finite number")
		return nil
	}
	if _, err := json.Marshal(v); err != nil { // a timestamp out of JSON's range, binary data
		return n.Value
	}
	return v
}

// leaf tries the value alone in its own type, so that a mistake is reported with its position.
func (w *walker) leaf(n *yaml.Node, t reflect.Type, path string) any {
	if n.Kind != yaml.ScalarNode {
		w.problem(n, path, "is %s; want %s", describe(n), want(t))
		return nil
	}
	v := w.scalar(n, path)
	own := reflect.PointerTo(t).Implements(jsonUnmarshaler) || reflect.PointerTo(t).Implements(textUnmarshaler) // it decodes itself
	if t.Kind() == reflect.String && !own && !isString(v) && n.Style == 0 {
		// "on", 1.10 or 0x10 unquoted: YAML makes something else of it than its writer sees.
		w.problem(n, path, "is %s; want a string: put %q in quotes", describe(n), n.Value)
		return nil
	}
	raw, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(raw, reflect.New(t).Interface())
	}
	if err != nil {
		switch {
		case t == duration:
			w.problem(n, path, "is %s; want a duration with a unit, like 10s or 5m", describe(n))
		case own:
			w.problem(n, path, "%q: %v", n.Value, err)
		default:
			w.problem(n, path, "is %s; want %s", describe(n), want(t))
		}
	}
	return v
}

func isString(v any) bool { _, ok := v.(string); return ok }

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a set of fields"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.Tag {
	case "!!str":
		return fmt.Sprintf("the string %q", n.Value)
	case "!!bool":
		return "the boolean " + n.Value
	case "!!int", "!!float":
		return "the number " + n.Value
	}
	return fmt.Sprintf("%q", n.Value)
}

func want(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number from 0 up"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return t.String()
}

// fieldsOf collects the fields of a struct by their JSON names; embedded structs count as
// their own fields do.
func fieldsOf(t reflect.Type, into map[string]reflect.Type) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
		case f.Anonymous && name == "":
			fieldsOf(f.Type, into)
		case name == "":
			into[f.Name] = f.Type
		default:
			into[name] = f.Type
		}
	}
}

// suggest names the field that was probably meant: one that differs in case alone, or by at
// most two letters.
func suggest(name string, names map[string]reflect.Type) string {
	best, distance := "", 3
	keys := make([]string, 0, len(names))
	for k := range names {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		if strings.EqualFold(k, name) {
			return fmt.Sprintf("; did you mean %q?", k)
		}
		if d := edits(name, k); d < distance {
			best, distance = k, d
		}
	}
	if best == "" {
		return fmt.Sprintf("; known here: %s", strings.Join(keys, ", "))
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// edits is the Levenshtein distance.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
