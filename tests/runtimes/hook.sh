#!/bin/busybox sh
# Stands in for NVIDIA's hook: makes links in the container that is being created, whose state is on standard input.
set -eu
text_of() { busybox sed -n "s/.*\"$1\" *: *\"\([^\"]*\)\".*/\1/p" | busybox head -n 1; }
bundle=$(text_of bundle)
root=$(busybox tr -d '\n' <"$bundle/config.json" | busybox sed 's/.*"root" *: *{\([^}]*\)}.*/\1/' | text_of path)
case $root in /*) ;; *) root=$bundle/$root ;; esac

what=$1
shift
while [ $# -gt 1 ]; do
    case $what in
    create-symlinks)
        link=$root${2#*::}
        [ -e "$link" ] || [ -L "$link" ] || busybox ln -s "${2%%::*}" "$link"
        ;;
    update-ldcache)
        for file in "$root$2"/lib*.so.*.*; do
            name=${file##*/}
            soname=${name%%.so*}.so.1
            [ -e "$root$2/$soname" ] || busybox ln -s "$name" "$root$2/$soname"
        done
        ;;
    esac
    shift 2
done
