package edgeapi

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/skerry-io/skerry/edge/internal/core/table"
)

// tables makes the tables that kubectl prints, with the columns that kube-apiserver makes, and name
// and age for kinds without columns here.
type tables struct{ resource schema.GroupResource }

// ConvertToTable implements rest.TableConvertor.
func (t tables) ConvertToTable(ctx context.Context, o, options runtime.Object) (*metav1.Table, error) {
	made, ok := table.Of(o)
	if !ok {
		return rest.NewDefaultTableConvertor(t.resource).ConvertToTable(ctx, o, options)
	}
	if wanted, ok := options.(*metav1.TableOptions); ok && wanted.NoHeaders {
		made.ColumnDefinitions = nil
	}
	return made, nil
}
