// SPDX-License-Identifier: Apache-2.0

package surface

import (
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Fate is the treatment of a field of a request.
type Fate string

// There are three.
const (
	Honoured Fate = "honoured"
	Refused  Fate = "refused"
	NoEffect Fate = "no effect"
)

// Row is the treatment of one field.
type Row struct {
	// Field is Message.field, or the path from a request: Request.field.field. The path goes first,
	// so that a message that several requests have may differ in one of them.
	Field string
	// Below is set if the row holds for everything below the field, too.
	Below bool
	Fate  Fate
	// Text explains how it is honoured, why it is refused, or why it has no effect.
	Text string
	// Proof names tests of an honoured field: DIRECTORY.Test, below internal unless it begins with
	// test/.
	Proof []string
	// Code and Request belong to a refused field: the request has the field set, and is sent.
	Code    codes.Code
	Request proto.Message
}

func honoured(field, text string, proof ...string) Row {
	return Row{
		Field: field,
		Fate:  Honoured,
		Text:  text,
		Proof: proof,
	}
}

func noEffect(field, because string) Row { return Row{Field: field, Fate: NoEffect, Text: because} }

func refused(field string, code codes.Code, why string, request proto.Message) Row {
	return Row{
		Field:   field,
		Fate:    Refused,
		Text:    why,
		Code:    code,
		Request: request,
	}
}

// below makes a row hold for everything below its field.
func below(r Row) Row {
	r.Below = true
	return r
}

// Rows is the table.
func Rows() []Row {
	return slices.Concat(sandboxRows(), containerRows(), resourceRows(), securityRows(), streamRows(), queryRows(), updateRows(), imageRows())
}

// Field is one field of a request.
type Field struct {
	Method string
	Path   string // from the request: RunPodSandboxRequest.config.hostname
	Name   string // Message.field
	Leaf   bool   // nothing is below it
}

// Methods are the methods of CRI, in its order.
func Methods() []protoreflect.MethodDescriptor {
	var all []protoreflect.MethodDescriptor
	services := protocol().Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			all = append(all, methods.Get(j))
		}
	}
	return all
}

// Fields are the fields of a method's request, in the protocol's order, each before those below it.
// A message within itself is not entered again.
func Fields(m protoreflect.MethodDescriptor) []Field {
	var all []Field
	var walk func(path string, d protoreflect.MessageDescriptor, above []protoreflect.FullName)
	walk = func(path string, d protoreflect.MessageDescriptor, above []protoreflect.FullName) {
		above = append(slices.Clone(above), d.FullName())
		for i := range d.Fields().Len() {
			f := d.Fields().Get(i)
			in := f.Message()
			leaf := in == nil || f.IsMap() || slices.Contains(above, in.FullName())
			all = append(all, Field{
				Method: string(m.Name()),
				Path:   path + "." + string(f.Name()),
				Name:   string(d.Name()) + "." + string(f.Name()),
				Leaf:   leaf,
			})
			if !leaf {
				walk(path+"."+string(f.Name()), in, above)
			}
		}
	}
	walk(string(m.Input().Name()), m.Input(), nil)
	return all
}

// Of returns the row of a field: by its path, by a field above it whose row includes those below,
// or by its name. inherited is set for the second kind. ok is false without a row.
func Of(rows []Row, all []Field, f Field) (row Row, inherited, ok bool) {
	if i := slices.IndexFunc(rows, func(r Row) bool { return r.Field == f.Path }); i >= 0 {
		return rows[i], false, true
	}
	above := f.Path[:strings.LastIndexByte(f.Path, '.')]
	if i := slices.IndexFunc(all, func(p Field) bool { return p.Path == above }); i >= 0 {
		if row, _, ok := Of(rows, all, all[i]); ok && row.Below {
			return row, true, true
		}
	}
	if i := slices.IndexFunc(rows, func(r Row) bool { return r.Field == f.Name }); i >= 0 {
		return rows[i], false, true
	}
	return Row{}, false, false
}
