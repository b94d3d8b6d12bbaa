package view

import (
	"bytes"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// gone is, by resource, the kube-apiserver version at which the newest delivered deletion was
// known. The cached objects don't show it, and a cloudcore replica whose watch lags may still have
// the deleted object (docs/dev/decisions/0067). A version lower than the one before is that of a
// restored cluster, and counts. There is one entry for each resource with interests.
type gone map[schema.GroupVersionResource]uint64

// goneModule is where the store has them, by group, version and resource.
const goneModule = "gone"

func (g gone) write(tx *store.Tx) error {
	for r, n := range g {
		key := r.Group + "/" + r.Version + "/" + r.Resource
		if err := tx.SetState(goneModule, key, strconv.AppendUint(nil, n, 10)); err != nil {
			return err
		}
	}
	return nil
}

// readGone skips invalid versions: cloudcore compares without them, as it did with an older
// edgecore.
func readGone(tx *store.Tx) (gone, error) {
	all := gone{}
	err := tx.States(goneModule, func(key string, state []byte) error {
		parts := bytes.Split([]byte(key), []byte("/"))
		if n := object.Number(string(state)); n > 0 && len(parts) == 3 {
			all[schema.GroupVersionResource{Group: string(parts[0]), Version: string(parts[1]), Resource: string(parts[2])}] = n
		}
		return nil
	})
	return all, err
}
