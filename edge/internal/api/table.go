package api

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/printers"
	"k8s.io/kubernetes/pkg/printers/internalversion"
)

// generator is Kubernetes' own printers. They are made when the first table is asked for: a device whose API nobody looks at doesn't pay for them.
var generator = sync.OnceValue(func() printers.TableGenerator {
	return printers.NewTableGenerator().With(internalversion.AddHandlers)
})

// tables makes the tables that kubectl prints, with the columns that kube-apiserver makes.
type tables struct{ resource schema.GroupResource }

// ConvertToTable implements rest.TableConvertor.
func (t tables) ConvertToTable(ctx context.Context, o, options runtime.Object) (*metav1.Table, error) {
	fallback := func() (*metav1.Table, error) {
		return rest.NewDefaultTableConvertor(t.resource).ConvertToTable(ctx, o, options)
	}
	tableOptions, _ := options.(*metav1.TableOptions)
	// The printers know the internal versions only.
	internal, err := legacyscheme.Scheme.ConvertToVersion(o, runtime.InternalGroupVersioner)
	if err != nil {
		return fallback() // a kind that this Kubernetes doesn't know
	}
	table, err := generator().GenerateTable(internal, printers.GenerateOptions{Wide: true, NoHeaders: tableOptions != nil && tableOptions.NoHeaders})
	if err != nil {
		return fallback() // a kind without a printer
	}
	// Each row carries its object, which the client wants in the version that it asked for.
	originals := []runtime.Object{o}
	if meta.IsListType(o) {
		if originals, err = meta.ExtractList(o); err != nil {
			return nil, fmt.Errorf("making a table of %s: %w", t.resource, err)
		}
	}
	if len(originals) != len(table.Rows) {
		return fallback()
	}
	for i := range table.Rows {
		table.Rows[i].Object = runtime.RawExtension{Object: originals[i]}
	}
	return table, nil
}
