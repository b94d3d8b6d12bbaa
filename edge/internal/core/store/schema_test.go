package store_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/klog/v2/ktesting"

	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

// A device is downgraded to the previous release: it can use the store of the newer one as long as
// that allows it, loses no record, and the newer one upgrades it again.
func TestSchemaOfANewerBuild(t *testing.T) {
	for _, c := range []struct {
		schema, readers uint64
		refused         bool
	}{
		{store.Schema + 1, store.Schema, false},
		{store.Schema + 1, store.Schema - 1, false},
		{store.Schema + 1, store.Schema + 1, true},
		{store.Schema + 1, 0, true}, // a build that states no readers
		{store.Schema + 2, store.Schema, false},
		{store.Schema, 0, false},
	} {
		t.Run(fmt.Sprintf("%d for %d", c.schema, c.readers), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "edge.db")
			s := open(t, path)
			held := ref("pods", "default", "a")
			update(t, s, func(tx *store.Tx) error {
				return errors.Join(
					tx.PutObject(held, &storepb.Object{Uid: "1", Version: 5, Raw: []byte("raw")}),
					tx.SetNumber("schema", c.schema), tx.SetNumber("readers", c.readers), tx.SetNumber("of-the-newer", 7),
				)
			})
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			_, ctx := ktesting.NewTestContext(t)
			again, err := store.Open(ctx, store.Config{Path: path})
			if c.refused {
				if !errors.Is(err, store.ErrSchema) || !strings.Contains(err.Error(), fmt.Sprint("schema ", c.schema)) {
					t.Fatalf("want ErrSchema with the number, got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			if err := again.View(func(tx *store.Tx) error {
				found := 0
				if err := tx.Objects(func(r object.Ref, o *storepb.Object) error {
					if r == held && o.GetUid() == "1" {
						found++
					}
					return nil
				}); err != nil || found != 1 {
					t.Errorf("the pod was found %d times, %v", found, err)
				}
				for number, want := range map[store.Number]uint64{"schema": store.Schema, "readers": store.Readers, "of-the-newer": 7} {
					if got, err := tx.Number(number); err != nil || got != want {
						t.Errorf("%s is %d, %v; want %d", number, got, err, want)
					}
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
}
