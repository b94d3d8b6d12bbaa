package config

import (
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Schema is the JSON schema (draft 07) of cloudcore.yaml: the names of its fields and their types,
// and not their bounds. It is for tools that can't call Read.
func Schema() map[string]any { return schema(reflect.TypeFor[Config]()) }

func schema(t reflect.Type) map[string]any {
	if t == reflect.TypeFor[metav1.Duration]() {
		return map[string]any{"type": "string", "pattern": `^(0|([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+)$`}
	}
	switch t.Kind() {
	case reflect.Struct:
		properties := map[string]any{}
		addFields(t, properties)
		return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schema(t.Elem())}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	default: // TestSchemaIsTheDefaults has every field: there are whole numbers alone
		return map[string]any{"type": "integer"}
	}
}

// addFields adds the fields of a struct by their JSON names; embedded structs count as their own
// fields do.
func addFields(t reflect.Type, into map[string]any) {
	for f := range t.Fields() {
		if f.Anonymous {
			addFields(f.Type, into)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		into[name] = schema(f.Type)
	}
}
