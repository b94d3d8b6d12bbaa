package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// runTar is as much of tar(1) as `kubectl cp` asks for: "cf - PATH..." and "xmf - [-C DIR]". The
// image holds no other.
func runTar(args []string, in io.Reader, out io.Writer) error {
	var mode, dir string
	var paths []string
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case mode == "":
			mode = strings.TrimPrefix(a, "-")
		case a == "-":
		case a == "-C" && i+1 < len(args):
			i++
			dir = args[i]
		case strings.HasPrefix(a, "--no-same-"):
		default:
			paths = append(paths, a)
		}
	}
	switch mode {
	case "cf":
		return pack(out, paths)
	case "xf", "xmf":
		return unpack(in, dir)
	}
	return fmt.Errorf("tar knows cf and xmf, not %q", mode)
}

func pack(out io.Writer, paths []string) error {
	w := tar.NewWriter(out)
	for _, p := range paths {
		err := filepath.WalkDir(p, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return packOne(w, path, d)
		})
		if err != nil {
			return err
		}
	}
	return w.Close()
}

func packOne(w *tar.Writer, path string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	link := ""
	if d.Type()&fs.ModeSymlink != 0 {
		if link, err = os.Readlink(path); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name = strings.TrimPrefix(path, "/")
	if err := w.WriteHeader(h); err != nil || !d.Type().IsRegular() {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// unpack writes below dir and nowhere else.
func unpack(in io.Reader, dir string) error {
	if dir == "" {
		dir = "."
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(h.Name, h.FileInfo().Mode().Perm())
		case tar.TypeReg:
			err = unpackFile(root, h, r)
		}
		if err != nil {
			return err
		}
	}
}

func unpackFile(root *os.Root, h *tar.Header, content io.Reader) error {
	if err := root.MkdirAll(filepath.Dir(h.Name), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(h.Name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, h.FileInfo().Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}
