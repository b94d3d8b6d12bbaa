package host

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// mountsBelow lists the machine's mount points at or below dir, in the order they were made.
func mountsBelow(dir string) ([]string, error) {
	// Not /proc/self, which shows the view of the process' first thread: that one may have run Do,
	// and stays in the host's namespaces for good, since a process can't end its first thread.
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("listing mounts: %w", err)
	}
	defer f.Close()
	var points []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// proc_pid_mountinfo(5): the fifth field is the mount point.
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		if point := unescape(fields[4]); point == dir || strings.HasPrefix(point, dir+"/") {
			points = append(points, point)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("listing mounts: %w", err)
	}
	return points, nil
}

// unescape turns the kernel's \040 into a space, and so on.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
