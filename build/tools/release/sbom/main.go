// Command sbom prints the CycloneDX bill of materials of a Go program: the modules that its linker
// recorded (debug/buildinfo), with their checksums and licences. The same program gives the same
// bytes.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/skerry-io/skerry/build/tools/release/licence"
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: sbom NAME VERSION RFC3339-TIME PROGRAM")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func write(name, version, at, program string) error {
	if _, err := time.Parse(time.RFC3339, at); err != nil {
		return err
	}
	raw, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return fmt.Errorf("reading what the linker recorded: %w", err)
	}
	sum := sha256.Sum256(raw)
	bom := cdx.NewBOM()
	// A name of this document alone, and not of the run that made it (RFC 9562, version 8: the
	// bytes are ours to choose).
	id := sum
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	bom.SerialNumber = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[0:4], id[4:6], id[6:8], id[8:10], id[10:16])
	root := "pkg:golang/" + info.Path
	bom.Metadata = &cdx.Metadata{Timestamp: at, Component: &cdx.Component{
		BOMRef: root, Type: cdx.ComponentTypeApplication, Name: name, Version: version,
		Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sum)}},
	}}
	components := []cdx.Component{{
		BOMRef: "pkg:golang/std", Type: cdx.ComponentTypeLibrary, Name: "std", Version: info.GoVersion,
		PackageURL: "pkg:golang/std@" + info.GoVersion[len("go"):], Licenses: licences([]string{"BSD-3-Clause"}),
	}}
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		return fmt.Errorf("go env GOMODCACHE: %w", err)
	}
	for _, m := range info.Deps {
		for m.Replace != nil {
			m = m.Replace
		}
		url := "pkg:golang/" + m.Path + "@" + m.Version
		c := cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: url}
		if m.Sum != "" {
			c.Properties = &[]cdx.Property{{Name: "golang:h1", Value: m.Sum}}
		}
		if m.Version != "" { // otherwise it is a folder of this repository
			ids, err := licence.IDs(licence.Dir(strings.TrimSpace(string(cache)), m.Path+"@"+m.Version))
			if err != nil {
				return err
			}
			c.Licenses = licences(ids)
		}
		components = append(components, c)
	}
	bom.Components = &components
	var refs []string
	for _, c := range components {
		refs = append(refs, c.BOMRef)
	}
	bom.Dependencies = &[]cdx.Dependency{{Ref: root, Dependencies: &refs}}
	return cdx.NewBOMEncoder(os.Stdout, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
}

func licences(ids []string) *cdx.Licenses {
	if len(ids) == 0 {
		return nil
	}
	var all cdx.Licenses
	for _, id := range ids {
		all = append(all, cdx.LicenseChoice{License: &cdx.License{ID: id}})
	}
	return &all
}
