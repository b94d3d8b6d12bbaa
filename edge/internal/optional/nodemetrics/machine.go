package nodemetrics

import (
	"math"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/common/nodemetrics"
)

// Machine reads the metrics of the machine and of this process into values. Unreadable values are
// skipped.
func Machine(dataDir string, values map[uint32]float64) {
	filesystem(dataDir, values, nodemetrics.DataSize, nodemetrics.DataAvailable, nodemetrics.DataInodesFree)
	filesystem("/", values, nodemetrics.RootSize, nodemetrics.RootAvailable, 0)
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return
	}
	if m, err := fs.Meminfo(); err == nil && m.MemTotalBytes != nil && m.MemAvailableBytes != nil {
		values[nodemetrics.MemorySize], values[nodemetrics.MemoryAvailable] = float64(*m.MemTotalBytes), float64(*m.MemAvailableBytes)
	}
	if s, err := fs.Stat(); err == nil {
		c := s.CPUTotal
		values[nodemetrics.CPUSeconds] = c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + c.Steal
		values[nodemetrics.CPUs], values[nodemetrics.BootTime] = float64(len(s.CPU)), float64(s.BootTime)
	}
	if l, err := fs.LoadAvg(); err == nil {
		values[nodemetrics.Load] = l.Load1
	}
	self, err := fs.Self()
	if err != nil {
		return
	}
	if s, err := self.Stat(); err == nil {
		values[nodemetrics.EdgecoreCPU], values[nodemetrics.EdgecoreMemory] = s.CPUTime(), float64(s.ResidentMemory())
		if at, err := s.StartTime(); err == nil {
			values[nodemetrics.StartTime] = math.Floor(at)
		}
	}
}

func filesystem(path string, values map[uint32]float64, size, available, inodes uint32) {
	var s unix.Statfs_t
	if unix.Statfs(path, &s) != nil {
		return
	}
	block := float64(s.Bsize)
	values[size], values[available] = float64(s.Blocks)*block, float64(s.Bavail)*block
	if inodes != 0 {
		values[inodes] = float64(s.Ffree)
	}
}
