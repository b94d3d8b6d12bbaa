package machine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/tests/cluster/lab"
)

// Package describes a Debian package of edgecore, of this checkout's programs and of the files that
// a release's package has.
type Package struct {
	Root   string // the repository's
	Images string // the trial's folder of images
	// Edgecore is the program; "" is that of bin/.
	Edgecore string
	// Env is the environment of edgecore in addition to its unit's, each NAME=value; may be nil.
	Env []string
	// Version, where it is set, replaces the program's own, and has its length.
	Version string
	// Revision, where it is set, is the package's: of two, the one with the higher is newer.
	Revision int
}

var versionWord = regexp.MustCompile(`v\d+\.\d+\.\S+`)

// ProgramVersion asks edgecore of a checkout for its version.
func ProgramVersion(ctx context.Context, root string) (string, error) {
	return versionOf(ctx, filepath.Join(root, "bin", "edgecore"))
}

func versionOf(ctx context.Context, edgecore string) (string, error) {
	out, err := exec.CommandContext(ctx, edgecore, "version").Output()
	if err != nil {
		return "", fmt.Errorf("asking edgecore for its version: %w", err)
	}
	v := versionWord.FindString(string(out))
	if v == "" {
		return "", fmt.Errorf("%q has no version", out)
	}
	return v, nil
}

// placeholder matches the values that a release fills in (build/release.sh).
var placeholder = regexp.MustCompile("^@[A-Z]+@$")

// contents is the part of build/package/edgecore.yaml that matters here (nfpm).
type contents struct {
	Contents []struct{ Src, Dst, Type, Packager string }
	Scripts  struct{ PostInstall, PreRemove, PostRemove string }
}

// Make writes the package to a file.
func (p Package) Make(ctx context.Context, file string) error {
	dir, err := os.MkdirTemp("", "edgecore-deb-")
	if err != nil {
		return fmt.Errorf("making a directory: %w", err)
	}
	defer os.RemoveAll(dir)
	p.Edgecore = cmp.Or(p.Edgecore, filepath.Join(p.Root, "bin", "edgecore"))
	own, err := versionOf(ctx, p.Edgecore)
	if err != nil {
		return err
	}
	if err := p.unpack(dir, own); err != nil {
		return fmt.Errorf("collecting the package's files: %w", err)
	}
	out, err := exec.CommandContext(ctx, "dpkg-deb", "--build", "--root-owner-group", "-Znone", dir, file).CombinedOutput()
	if err != nil {
		return fmt.Errorf("making the package: %w: %s", err, out)
	}
	return nil
}

func (p Package) unpack(dir, own string) error {
	description, err := os.ReadFile(filepath.Join(p.Root, "build", "package", "edgecore.yaml"))
	if err != nil {
		return err
	}
	var of contents
	if err := yaml.Unmarshal(description, &of); err != nil {
		return err
	}
	var errs []error
	write := func(path string, content []byte, mode os.FileMode) {
		path = filepath.Join(dir, path)
		errs = append(errs, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, mode))
	}
	for _, c := range of.Contents {
		switch {
		case c.Packager != "" && c.Packager != "deb":
		case c.Type == "dir":
			errs = append(errs, os.MkdirAll(filepath.Join(dir, c.Dst), 0o755))
		default:
			content, mode, err := p.content(c.Src, own)
			errs = append(errs, err)
			write(c.Dst, content, mode)
		}
	}
	for name, script := range map[string]string{"postinst": of.Scripts.PostInstall, "prerm": of.Scripts.PreRemove, "postrm": of.Scripts.PostRemove} {
		raw, err := os.ReadFile(filepath.Join(p.Root, script))
		errs = append(errs, err)
		write("DEBIAN/"+name, raw, 0o755)
	}
	revision := cmp.Or(p.Revision, 1)
	if p.Version != "" {
		revision = max(revision, 2)
	}
	write("DEBIAN/control", fmt.Appendf(nil, "Package: skerry-edgecore\nVersion: 0.0.%d\nArchitecture: amd64\nMaintainer: tests\nDescription: edgecore of this checkout\n", revision), 0o644)
	return errors.Join(errs...)
}

// content is a file of the package.
func (p Package) content(src, own string) ([]byte, os.FileMode, error) {
	version := cmp.Or(p.Version, own)
	if len(version) != len(own) {
		return nil, 0, fmt.Errorf("version %s is not as long as %s", version, own)
	}
	read := func(mode os.FileMode, path ...string) ([]byte, os.FileMode, error) {
		raw, err := os.ReadFile(filepath.Join(path...))
		return raw, mode, err
	}
	switch {
	case src == "@PROGRAM@":
		raw, mode, err := read(0o755, p.Edgecore)
		return bytes.ReplaceAll(raw, []byte(own), []byte(version)), mode, err
	case src == "@LAUNCH@":
		return read(0o755, p.Root, "bin", "skerry-launch")
	case src == "@PAUSE@":
		return read(0o644, p.Images, "pause.tar")
	case src == "@RELEASED@":
		return []byte(version + "\n"), 0o644, nil
	case placeholder.MatchString(src): // a text
		return []byte(src + "\n"), 0o644, nil
	}
	return read(0o644, p.Root, src)
}

// environment is a line of shell that gives edgecore's unit its further environment.
func (p Package) environment() string {
	if len(p.Env) == 0 {
		return ""
	}
	const dir = "/etc/systemd/system/edgecore.service.d"
	return fmt.Sprintf(`mkdir -p %s; printf '[Service]\nEnvironment=%s\n' >%[1]s/environment.conf; systemctl daemon-reload`, dir, strings.Join(p.Env, " "))
}

// Join installs edgecore's package on a machine that has booted, gives it the image of the trial's
// sample, and joins by a token. settings are lines of edgecore.yaml. It may be repeated after an
// interruption.
func (m *Machine) Join(ctx context.Context, p Package, token []byte, settings string) error {
	image, err := os.ReadFile(filepath.Join(p.Images, "sample.tar"))
	if err != nil {
		return err
	}
	share := m.Share()
	err = errors.Join(p.Make(ctx, filepath.Join(share, "edgecore.deb")), os.WriteFile(filepath.Join(share, "sample.tar"), image, 0o644),
		os.WriteFile(filepath.Join(share, "token"), token, 0o600), os.WriteFile(filepath.Join(share, "settings"), []byte(settings), 0o644))
	if err != nil {
		return err
	}
	_, err = m.Run(ctx, `set -e
		dpkg --install /host/edgecore.deb
		ctr -n k8s.io images import /host/sample.tar
		if [ ! -e /etc/machine-joined ]; then
			edgecore join --token-file /host/token `+lab.Cloud().String()+`
			cat /host/settings >>/etc/skerry/edgecore.yaml
			touch /etc/machine-joined
		fi
		`+p.environment()+`
		systemctl enable --now edgecore`)
	return err
}
