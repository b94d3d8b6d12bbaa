package app

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/common/config"
	"github.com/skerry-io/skerry/edge/internal/pods/edged"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
)

const dropIns = "modules.edged.kubeletConfigDir"

// Configuration reads edgecore.yaml and also checks the part that only a module can: the
// KubeletConfiguration, with its drop-in files. The error names every mistake with its line.
func Configuration(file string, data []byte) (*edgeconfig.Config, error) {
	cfg, doc, err := edgeconfig.Read(file, data)
	found, ok := errors.AsType[*config.Error](err)
	if err != nil && (!ok || doc == nil) {
		return nil, err
	}
	var problems []config.Problem
	if found != nil {
		problems = found.Problems
	}
	kubelet := kubeletIn(data)
	if cfg != nil {
		kubelet = cfg.Modules.Edged.Kubelet
		if !cfg.Modules.Edged.Enable {
			kubelet = nil
		}
	}
	var from map[string]string // the drop-in file of a field
	if cfg != nil && kubelet != nil && cfg.Modules.Edged.KubeletConfigDir != "" {
		merged, err := edged.MergeDropIns(kubelet, cfg.Modules.Edged.KubeletConfigDir)
		if err != nil {
			problems = append(problems, config.Problem{Line: doc.Line(dropIns), Path: dropIns, Message: err.Error()})
		}
		kubelet, from = merged.Raw, merged.From
		cfg.Modules.Edged.Kubelet = kubelet
	}
	if kubelet != nil {
		for _, m := range edged.Validate(kubelet) {
			at, text := "modules.edged.kubelet", m.Message
			if m.Field != "" {
				at += "." + m.Field
			}
			top, _, _ := strings.Cut(m.Field, ".")
			if file := from[top]; file != "" {
				at, text = dropIns, file+": "+m.Field+": "+text
			}
			problems = append(problems, config.Problem{Line: doc.Line(at), Path: at, Message: text})
		}
	}
	if len(problems) > 0 {
		slices.SortStableFunc(problems, func(x, y config.Problem) int { return cmp.Compare(x.Line, y.Line) })
		return nil, &config.Error{File: file, Problems: problems}
	}
	return cfg, nil
}

// kubeletIn is the KubeletConfiguration in a file of which some fields can't be read; nil if it is
// missing, or the kubelet is switched off.
func kubeletIn(data []byte) json.RawMessage {
	var file struct {
		Modules struct {
			Edged struct {
				Enable  *bool           `json:"enable"`
				Kubelet json.RawMessage `json:"kubelet"`
			} `json:"edged"`
		} `json:"modules"`
	}
	_ = yaml.Unmarshal(data, &file) // unreadable fields have been reported, and stay zero here
	if e := file.Modules.Edged; e.Enable == nil || *e.Enable {
		return e.Kubelet
	}
	return nil
}

// NodeName is the node's name: asked for, else configured, else the host's own in lower case.
func NodeName(cfg *edgeconfig.Config, asked string) (string, error) {
	name := asked
	if name == "" {
		name = cfg.Modules.Edged.HostnameOverride
	}
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("reading the host's name: %w", err)
		}
		name = strings.ToLower(host)
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		mend := "set modules.edged.hostnameOverride"
		if asked != "" {
			mend = "choose another --node-name"
		}
		return "", fmt.Errorf("node name %q: %s; %s", name, strings.Join(problems, "; "), mend)
	}
	return name, nil
}

// IdentityDir is where the identity is.
func IdentityDir(cfg *edgeconfig.Config) string { return filepath.Join(cfg.DataDir, "identity") }

// BuildTime returns the build time of this program from its file: no relevant certificate is
// verified with an earlier time.
func BuildTime() time.Time {
	path, err := os.Executable()
	if err != nil {
		return time.Time{}
	}
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
