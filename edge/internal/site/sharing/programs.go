package sharing

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"github.com/skerry-io/skerry/edge/internal/core/artefact"
	"github.com/skerry-io/skerry/edge/internal/core/launch"
)

// Programs are those of this device: in its slots, and the one of its package while that runs.
// Nothing else is kept for others. Their files are not compared with their digests here: who gets
// them does that.
type Programs struct {
	Directory launch.Directory
	// Self is the file of this process's program, if it is the package's; "" else. No state has its
	// digest.
	Self string

	once   sync.Once
	digest string // of Self; "" if it can't be read
}

// Open returns a program by its digest. It may be called by any goroutine.
func (p *Programs) Open(digest string) (Program, error) {
	path, err := p.find(digest)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() > artefact.MaxSize) {
		err = fmt.Errorf("%s: %w", path, errBounds)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return file{f, info.Size()}, nil
}

func (p *Programs) find(digest string) (string, error) {
	state, err := p.Directory.Load()
	if err != nil {
		return "", err
	}
	programs := []launch.Program{state.Confirmed}
	if state.Trial != nil {
		programs = append(programs, state.Trial.Program)
	}
	if state.Former != nil {
		programs = append(programs, state.Former.Program)
	}
	for _, one := range programs {
		if one.Slot != launch.Package && one.Digest == digest {
			return p.Directory.Program(one.Slot), nil
		}
	}
	if p.Self == "" {
		return "", fs.ErrNotExist
	}
	p.once.Do(func() { p.digest, _ = artefact.Digest(p.Self) })
	if p.digest != digest {
		return "", fs.ErrNotExist
	}
	return p.Self, nil
}

type file struct {
	*os.File
	size int64
}

// Size implements Program.
func (f file) Size() int64 { return f.size }
