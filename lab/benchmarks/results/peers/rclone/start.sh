# The VFS cache on disk; --vfs-fast-fingerprint and --no-modtime are what rclone recommends for a cache over S3
# (rclone.org/commands/rclone_serve_s3).
exec "@PROGRAMS@/rclone" --config "@DIR@/rclone.conf" serve s3 --addr "127.0.0.1:@PORT@" --auth-key "@ACCESS_KEY@,@SECRET_KEY@" \
  --cache-dir "@DIR@/cache" --vfs-cache-mode full --vfs-fast-fingerprint --no-modtime --read-only --dir-cache-time 1h origin:
