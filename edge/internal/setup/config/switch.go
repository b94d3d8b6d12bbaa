package config

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Switch turns a module on or off, or leaves that to the device's NodePool: auto is on where that
// has podSubnets.
type Switch string

// The values of a Switch; in a file the first two are true and false.
const (
	On   Switch = "true"
	Off  Switch = "false"
	Auto Switch = "auto"
)

// Is reports whether a module is on; pool is the value of its NodePool.
func (s Switch) Is(pool bool) bool { return s == On || s == Auto && pool }

// UnmarshalJSON reads true, false or "auto"; validate finds other values.
func (s *Switch) UnmarshalJSON(raw []byte) error {
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return err
	}
	*s = Switch(fmt.Sprint(v))
	return nil
}

// MarshalJSON is the inverse of UnmarshalJSON.
func (s Switch) MarshalJSON() ([]byte, error) {
	if s == On || s == Off {
		return []byte(s), nil
	}
	return json.Marshal(string(s))
}

func (s Switch) validate(at *field.Path) field.ErrorList {
	switch s {
	case On, Off, Auto:
		return nil
	}
	return field.ErrorList{field.NotSupported(at, s, []Switch{On, Off, Auto})}
}
