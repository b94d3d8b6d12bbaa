package bench_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/skerry-io/skerry/tests/cluster/binary"
)

const (
	whatSizeEdge  = "size of the program edgecore"
	whatSizeCloud = "size of the program cloudcore"
)

// sizes reads how large the programs are, as `make build` makes them: without symbols.
func (s *bench) sizes(b *testing.B) {
	root, err := binary.Root()
	check(b, err)
	_, err = binary.Build(b.Context(), root, "cloudcore", "edgecore", "plainkubelet")
	check(b, err)
	size := func(program string) []float64 {
		info, err := os.Stat(filepath.Join(root, "bin", program))
		check(b, err)
		return []float64{float64(info.Size()) / 1e6}
	}
	s.rows = append(s.rows,
		row{
			what: whatSizeEdge, unit: "MB", ours: size("edgecore"), floor: size("plainkubelet"), floorName: "plain kubelet of the same version",
			goal: "at most 96 MB", judge: atMost(96, "MB"), note: "with the kubelet inside. What each program holds, and why edgecore is smaller, is in docs/dev/decisions/0071.",
		},
		row{
			what: whatSizeCloud, unit: "MB", ours: size("cloudcore"), goal: "at most 36 MB", judge: atMost(36, "MB"),
			note: "14.3 MB of it are the types of Kubernetes' API (k8s.io/api), which client-go's scheme keeps whole; without that it would be some 33 to 34 MB, at the price of a leader election and a " +
				"reader of the CA's ConfigMap of our own (docs/dev/decisions/0071).",
		})
}
