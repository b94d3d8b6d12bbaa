package doccalls

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Block is a fenced block of a page.
type Block struct {
	Page     string // from the repository's root
	Line     int    // of the fence
	Language string
	Lines    []string
	// Reason is why no test runs the block: <!-- not run: REASON --> in the line above.
	Reason string
	// Part is the kind of object that has the block's fields: <!-- part of KIND --> above.
	Part string
}

// Command is a command of a block, and the output that the block shows.
type Command struct {
	Line   string // without its comment; several lines where it continues
	Output []string
}

var (
	fence   = regexp.MustCompile("^( *)```(.*)$")
	mark    = regexp.MustCompile(`^ *<!-- (not run: |part of )(.+) -->$`)
	remark  = regexp.MustCompile(`(^|\s{2,}|\s)#( .*)?$`)
	heredoc = regexp.MustCompile(`<< *'?(\w+)'?`)
	// ours begin a command of a user.
	ours = regexp.MustCompile(`^(\$ |kubectl [a-z]|edgecore |cloudcore |kubectl-skerry |bin/trial |systemctl |make )`)
)

// Name is how a test reports the block.
func (b Block) Name() string { return fmt.Sprintf("%s:%d", b.Page, b.Line) }

// Shell reports whether the block is for a shell.
func (b Block) Shell() bool { return b.Language == "" || b.Language == "sh" }

// Pages are the documents with commands: for users and for developers.
func Pages(root string) (pages []string, err error) {
	pages = []string{"README.md", "CONTRIBUTING.md", "SECURITY.md"}
	err = filepath.WalkDir(filepath.Join(root, "docs"), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == "decisions" || d.Name() == "scenarios" {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".md") {
			page, err := filepath.Rel(root, path)
			pages = append(pages, page)
			return err //nolint:wrapcheck // both are below root
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing the documents: %w", err)
	}
	return pages, nil
}

// Blocks are those of all documents, in the order of the pages.
func Blocks(root string) (all []Block, err error) {
	pages, err := Pages(root)
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		raw, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			return nil, fmt.Errorf("reading a document: %w", err)
		}
		blocks, err := blocksOf(page, string(raw))
		if err != nil {
			return nil, err
		}
		all = append(all, blocks...)
	}
	return all, nil
}

func blocksOf(page, text string) (all []Block, err error) {
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		m := fence.FindStringSubmatch(lines[i])
		if m == nil {
			continue
		}
		b := Block{Page: page, Line: i + 1, Language: m[2]}
		if i > 0 {
			if m := mark.FindStringSubmatch(lines[i-1]); m != nil && m[1] == "part of " {
				b.Part = m[2]
			} else if m != nil {
				b.Reason = m[2]
			}
		}
		for i++; ; i++ {
			if i == len(lines) {
				return nil, fmt.Errorf("%s: the block has no end", b.Name())
			}
			if strings.TrimSpace(lines[i]) == "```" {
				break
			}
			b.Lines = append(b.Lines, strings.TrimPrefix(lines[i], m[1]))
		}
		all = append(all, b)
	}
	return all, nil
}

// Commands are those of a block for a shell. Where a line begins with a prompt, lines without one
// are output.
func (b Block) Commands() (all []Command) {
	prompt := slices.ContainsFunc(b.Lines, func(l string) bool { return strings.HasPrefix(l, "$ ") })
	for i := 0; i < len(b.Lines); i++ {
		line, is := strings.CutPrefix(b.Lines[i], "$ ")
		if prompt && !is {
			if n := len(all) - 1; n >= 0 {
				all[n].Output = append(all[n].Output, line)
			}
			continue
		}
		line = remark.ReplaceAllString(line, "")
		for strings.HasSuffix(line, `\`) && i+1 < len(b.Lines) {
			i++
			line += "\n" + remark.ReplaceAllString(b.Lines[i], "")
		}
		if m := heredoc.FindStringSubmatch(line); m != nil && !strings.Contains(line, "<<<") {
			for i+1 < len(b.Lines) {
				i++
				line += "\n" + b.Lines[i]
				if b.Lines[i] == m[1] {
					break
				}
			}
		}
		if strings.TrimSpace(line) != "" {
			all = append(all, Command{Line: line})
		}
	}
	return all
}

// columns are the words of a table's header, nil for any other line.
func columns(line string) []string {
	if line != strings.ToUpper(line) {
		return nil
	}
	words := strings.Fields(line)
	if len(words) < 2 || words[0] == "..." {
		return nil
	}
	return words
}

// Differs reports how a command's output differs from what the page shows: the columns of a table,
// whatever its rows.
func (c Command) Differs(output string) error {
	want := header(c.Output)
	if want == nil {
		return nil
	}
	if got := header(strings.Split(output, "\n")); !slices.Equal(got, want) {
		return fmt.Errorf("the columns are %q, and the page shows %q", got, want)
	}
	return nil
}

// header are the columns of the first table.
func header(lines []string) []string {
	for _, line := range lines {
		if found := columns(line); found != nil {
			return found
		}
	}
	return nil
}

// OnDevice reports whether a block needs a device, or the whole trial.
func (b Block) OnDevice() bool {
	for _, c := range b.Commands() {
		if device.MatchString(c.Line) {
			return true
		}
	}
	return false
}

var device = regexp.MustCompile(`(^|[|&;(] *)(edgecore|bin/\w+|make) |/run/skerry/|/proxy/|kubectl skerry (node|rehearse|bundle|recorder|logs|exec|cp|port-forward|proxy|top|ui)\b|exec deploy/cloudcore`)
