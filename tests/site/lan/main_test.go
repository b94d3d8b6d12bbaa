// Package lan_test runs against one whole trial of a site: three edges in one NodePool that know each other on their LAN, with a pod network, ClusterIPs and names of
// their own.
package lan_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/tests/cluster/suite"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

func TestMain(m *testing.M) {
	os.Exit(tests().Main(m))
}

func tests() suite.Suite {
	return suite.Suite{Name: "site-lan", Options: options()}
}

// options are the trial's. Lost nodes are noticed quickly, so that the cloud evicts while a test looks.
func options() trial.Options {
	o := trial.DefaultOptions()
	o.Edges, o.Quick, o.Site = 3, true, true
	o.Set = []string{
		"modules.services.enable=true", "modules.names.enable=true",
		"modules.edgeHub.keepalive=3s", "modules.edgeHub.idleTimeout=9s", // how soon a silent link is given up
	}
	return o
}

// A system is the trial as a test uses it.
type system struct {
	*suite.System
}

const pool = "plant"

// use gives a test the trial, with its edges in one NodePool.
func use(t *testing.T) *system {
	t.Helper()
	s := &system{tests().Use(t)}
	nodes := s.Client.CoreV1().Nodes()
	for _, n := range options().Nodes() {
		patch := fmt.Sprintf(`{"metadata":{"labels":{"skerry.io/node-pool":%q}}}`, pool)
		_, err := nodes.Patch(t.Context(), n.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		s.Check(err)
	}
	body := fmt.Sprintf(`{"apiVersion":"skerry.io/v1alpha1","kind":"NodePool","metadata":{"name":%q},"spec":{"network":"plant"}}`, pool)
	s.WaitFor("the NodePool to be made", func(ctx context.Context) error {
		err := s.Client.CoreV1().RESTClient().Post().AbsPath("/apis/skerry.io/v1alpha1/nodepools").SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(ctx).Error()
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	return s
}
