# Objects in memory, as Varnish recommends for what fits. "-j none": its own user could not enter the temporary folder.
exec varnishd -F -j none -n "@DIR@/work" -a "127.0.0.1:@PORT@" -T none -f "@DIR@/default.vcl" -s malloc,2g
