package main

import (
	"github.com/skerry-io/skerry/cloud/internal/core/config"
	"github.com/skerry-io/skerry/common/cli"
)

// standardConfig is where packages put the configuration.
const standardConfig = "/etc/skerry/cloudcore.yaml"

func load(file string) (*config.Config, error) {
	data, err := cli.ReadFile(file, "`cloudcore config minimal` prints one to start from")
	if err != nil {
		return nil, err
	}
	cfg, err := config.Read(file, data)
	return cfg, cli.Bad(err)
}
