package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	yaml "sigs.k8s.io/yaml/goyaml.v3"

	"github.com/skerry-io/skerry/common/config"
)

// Merge returns the cloudcore.yaml that has the fields of set, and in addition those of a file. The
// file may leave out any field, its apiVersion and kind too. A field that set has with another
// value is a mistake of the file, like all that Read refuses. The error is a *config.Error that
// holds every mistake.
func Merge(file string, data []byte, set map[string]any) (map[string]any, error) {
	raw, err := json.Marshal(set)
	if err != nil {
		return nil, fmt.Errorf("merging %s: %w", file, err)
	}
	c, fixed, merged := Default(), map[string]any{}, map[string]any{}
	if err := errors.Join(json.Unmarshal(raw, c), json.Unmarshal(raw, &fixed)); err != nil {
		return nil, fmt.Errorf("merging %s: %w", file, err)
	}
	d, err := config.Decode(file, data, Kind, c)
	if err := besideHead(err); err != nil {
		return nil, err
	}
	// By the parser that Decode has used: others read words such as "on" otherwise.
	var own any
	if err := yaml.Unmarshal(data, &own); err != nil {
		return nil, fmt.Errorf("merging %s: %w", file, err)
	}
	if raw, err = json.Marshal(own); err == nil { // so that numbers have the type that those of set have now
		err = json.Unmarshal(raw, &merged)
	}
	if err != nil {
		return nil, fmt.Errorf("merging %s: %w", file, err)
	}
	if merged == nil { // a file of "null"
		merged = map[string]any{}
	}
	if err := d.Errors(append(lay(merged, fixed, nil), c.Validate()...)); err != nil {
		return nil, err
	}
	return merged, nil
}

// lay puts the fields of set into own, and reports those that own has with another value. A field
// that is null counts as left out, as it does for Decode.
func lay(own, set map[string]any, at *field.Path) (errs field.ErrorList) {
	for _, name := range slices.Sorted(maps.Keys(set)) {
		at := at.Child(name)
		have, want := own[name], set[name]
		inner, nested := have.(map[string]any)
		switch {
		case have == nil:
			own[name] = want
		case nested:
			within, _ := want.(map[string]any)
			errs = append(errs, lay(inner, within, at)...)
		case !reflect.DeepEqual(have, want):
			text, _ := json.Marshal(want) // it was JSON
			errs = append(errs, field.Invalid(at, have, fmt.Sprintf("cloudcore install sets it to %s", text)))
		}
	}
	return errs
}

// besideHead is an error of Decode without the complaints about a missing apiVersion or kind.
func besideHead(err error) error {
	e, ok := errors.AsType[*config.Error](err)
	if !ok {
		return err
	}
	left := slices.DeleteFunc(slices.Clone(e.Problems), func(p config.Problem) bool {
		return p.Line == 0 && (p.Path == "apiVersion" || p.Path == "kind")
	})
	if len(left) == 0 {
		return nil
	}
	return &config.Error{File: e.File, Problems: left}
}
