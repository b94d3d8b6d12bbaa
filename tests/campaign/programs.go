package campaign

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/skerry-io/skerry/tests/campaign/sensitivity"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/wrongclock"
)

// build builds the programs and gives where each is.
func build(ctx context.Context, root string, changed map[string]string) (map[string]string, error) {
	names := slices.DeleteFunc([]string{"cloudcore", "edgecore", "hollowedge"}, func(name string) bool { return changed[name] != "" })
	paths, err := binary.Build(ctx, root, names...)
	if err != nil {
		return nil, err
	}
	programs := map[string]string{}
	for i, name := range names {
		programs[name] = paths[i]
	}
	maps.Copy(programs, changed)
	return programs, nil
}

// The programs that BuildChanged can build.
var packages = map[string]string{"cloudcore": "./cloud/cmd/cloudcore", "hollowedge": "./tests/cmd/hollowedge", "edgecore": "./edge/cmd/edgecore"}

// BuildChanged builds programs into dir, for Options.Changed, that have the switches of all rules.
func BuildChanged(ctx context.Context, dir string, names ...string) (map[string]string, error) {
	root, err := binary.Root()
	if err != nil {
		return nil, err
	}
	overlay, err := sensitivity.Write(root, dir, sensitivity.All()...)
	if err != nil {
		return nil, err
	}
	changed := map[string]string{}
	for _, name := range names {
		changed[name] = filepath.Join(dir, name)
		if err := binary.BuildChanged(ctx, root, changed[name], packages[name], overlay); err != nil {
			return nil, err
		}
	}
	return changed, nil
}

// prepareClock makes in dir the files for an edgecore with another time of day: a program that
// answers its reads of the clock, and a copy of edgecore that asks.
func prepareClock(ctx context.Context, root, dir string, programs map[string]string) error {
	programs["wrongclock"], programs["asking"] = filepath.Join(dir, "wrongclock"), filepath.Join(dir, "hollowedge")
	if err := binary.BuildStatic(ctx, root, programs["wrongclock"], "./tests/cmd/wrongclock"); err != nil {
		return err
	}
	return wrongclock.Copy(programs["asking"], programs["hollowedge"])
}

func command(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(program), args[0], err, bytes.TrimSpace(errs.Bytes()))
	}
	return string(out), nil
}
