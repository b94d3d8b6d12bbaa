package reports

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

// Client makes requests at kube-apiserver, as cloudcore itself.
type Client interface {
	Do(ctx context.Context, as kube.Identity, r kube.Request) (*kube.Response, error)
}

// Kind merges the reports of one kind of objects. Its methods get the whole object as JSON and
// return it changed, or nil without a change.
type Kind interface {
	Resource() schema.GroupVersionResource
	// Merge lays reports, by node, over the status. A nil report takes the node's entry away. A
	// report that makes no sense is named in refused, and the others are laid over all the same.
	Merge(object []byte, reports map[string][]byte) (merged []byte, refused map[string]error, err error)
	// Sweep takes away the entries of nodes that don't exist.
	Sweep(object []byte, exists func(node string) bool) (swept []byte, err error)
}

// Lay merges reports into entries by node, as Kind.Merge does: each that can be read is the node's
// entry, a nil one removes it, and one that read refuses makes no change.
func Lay[E any](entries map[string]E, reports map[string][]byte, read func(node string, body []byte) (E, error)) (refused map[string]error) {
	refused = map[string]error{}
	for node, body := range reports {
		if body == nil {
			delete(entries, node)
			continue
		}
		e, err := read(node, body)
		if err != nil {
			refused[node] = err
			continue
		}
		entries[node] = e
	}
	return refused
}

// Short bounds a node's text to so many bytes of JSON, in which some characters take six.
func Short(text string, most int) string {
	for i, r := range text {
		switch {
		case r < ' ' || r == '<' || r == '>' || r == '&' || r == utf8.RuneError || r == '\u2028' || r == '\u2029': // encoding/json
			most -= len(`\u0000`)
		case r == '"' || r == '\\':
			most -= 2
		default:
			most -= utf8.RuneLen(r)
		}
		if most < 0 {
			return text[:i] + " ..."
		}
	}
	return text
}

// Of is the Kind of a Go type.
func Of[T any](resource schema.GroupVersionResource, merge func(o *T, reports map[string][]byte) (refused map[string]error), sweep func(o *T, exists func(node string) bool)) Kind {
	return &kindOf[T]{resource, merge, sweep}
}

type kindOf[T any] struct {
	resource schema.GroupVersionResource
	merge    func(*T, map[string][]byte) map[string]error
	sweep    func(*T, func(string) bool)
}

func (k *kindOf[T]) Resource() schema.GroupVersionResource { return k.resource }

func (k *kindOf[T]) Merge(object []byte, reports map[string][]byte) (merged []byte, refused map[string]error, err error) {
	merged, err = change(object, func(o *T) { refused = k.merge(o, reports) })
	return merged, refused, err
}

func (k *kindOf[T]) Sweep(object []byte, exists func(string) bool) ([]byte, error) {
	return change(object, func(o *T) { k.sweep(o, exists) })
}

func change[T any](object []byte, do func(*T)) ([]byte, error) {
	o := new(T)
	if err := json.Unmarshal(object, o); err != nil {
		return nil, fmt.Errorf("reading the object: %w", err)
	}
	before, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("writing the object: %w", err)
	}
	do(o)
	after, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("writing the object: %w", err)
	}
	if string(before) == string(after) {
		return nil, nil
	}
	return after, nil
}

// target is one object.
type target struct {
	resource  schema.GroupVersionResource
	namespace string
	name      string
}

func (t target) path() string {
	p := "/apis/" + t.resource.Group + "/" + t.resource.Version
	if t.namespace != "" {
		p += "/namespaces/" + url.PathEscape(t.namespace)
	}
	return p + "/" + t.resource.Resource + "/" + url.PathEscape(t.name)
}
